//! Random bytes for new ids.

#[cfg(test)]
thread_local! {
    static SEEDED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns the random bytes of a new id.
pub fn id_bytes() -> Result<[u8; 16], getrandom::Error> {
    #[cfg(test)]
    if SEEDED.get() {
        return Ok(fastrand::u128(..).to_be_bytes());
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map(|()| bytes)
}

/// Sets whether the ids of this thread come from its seeded random source, so that a simulation can repeat them.
#[cfg(test)]
pub fn use_seeded_ids(seeded: bool) {
    SEEDED.set(seeded);
}
