//! The ids of intents that repeat others.

use sha2::{Digest, Sha256};

use crate::domain::intent::{IntentId, MAX_NAME_CHARS};

/// Stands between the id of the first intent of a chain and the digest that ends the ids of all others.
const MARK: &str = "~redrive-";
/// Hex digits of the digest in an id: 64 bits, so that no two redrives of a chain share one.
const DIGEST_CHARS: usize = 16;

/// Returns the id of the new intent that repeats `old`.
///
/// It depends on nothing but the old id and `redrive`, so a redrive that was interrupted creates no intent twice. The new id is
/// that of the first intent of the chain, cut if it is too long, with a digest behind it.
pub fn redriven_id(old: &IntentId, redrive: &str) -> IntentId {
    let hash = Sha256::new().chain_update(old.as_str()).chain_update([0]).chain_update(redrive).finalize();
    let digest: String = hash.iter().take(DIGEST_CHARS / 2).map(|byte| format!("{byte:02x}")).collect();
    let first = old.as_str().rsplit_once(MARK).map_or(old.as_str(), |(first, end)| match is_digest(end) {
        true => first,
        false => old.as_str(),
    });
    let kept: String = first.chars().take(MAX_NAME_CHARS - MARK.len() - DIGEST_CHARS).collect();
    IntentId::of_redrive(format!("{}{MARK}{digest}", kept.trim_end()))
}

fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_CHARS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> IntentId {
        IntentId::parse(text).unwrap()
    }

    #[test]
    fn ids_of_a_chain_keep_the_first_id_and_do_not_grow() {
        let first = redriven_id(&id("order-1"), "a");
        assert_eq!(first, redriven_id(&id("order-1"), "a"), "the same redrive creates the same intent");
        assert_ne!(first, redriven_id(&id("order-1"), "b"));
        let second = redriven_id(&first, "a");
        assert_ne!(first, second);
        for redriven in [&first, &second] {
            assert!(redriven.as_str().starts_with("order-1~redrive-"), "{redriven}");
            assert_eq!(redriven.as_str().len(), "order-1~redrive-".len() + 16);
        }
        assert!(redriven_id(&id("a~redrive-b"), "x").as_str().starts_with("a~redrive-b~redrive-"), "an id of a client");
    }

    #[test]
    fn ids_of_any_length_give_valid_ids() {
        for old in ["é".repeat(200), format!("{} z", "a".repeat(174)), "a".repeat(175)] {
            let redriven = redriven_id(&id(&old), "a");
            assert_eq!(IntentId::parse(redriven.as_str()).as_ref(), Ok(&redriven), "{old}");
        }
        let (one, other) = (id(&format!("{}1", "a".repeat(199))), id(&format!("{}2", "a".repeat(199))));
        assert_ne!(redriven_id(&one, "a"), redriven_id(&other, "a"));
    }
}
