//! Random bytes for new ids.

/// Returns the random bytes of a new id.
pub fn id_bytes() -> Result<[u8; 16], getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map(|()| bytes)
}
