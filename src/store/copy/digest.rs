//! The digest of a table: how many rows it has, and one hash of all of them that does not depend on their order. The order
//! of texts differs between the stores.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::tables::{Cell, Row};

/// The digest of the rows that were added. Two tables with the same rows have the same digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    pub rows: u64,
    /// The sum of the SHA-256 hashes of all rows, in four parts that are added separately.
    sums: [u64; 4],
}

impl Digest {
    pub(super) fn add(&mut self, row: &Row) {
        let mut hash = Sha256::new();
        for cell in row {
            let mut add = |kind: u8, value: &[u8]| {
                hash.update([kind]);
                hash.update(u64::try_from(value.len()).unwrap_or(u64::MAX).to_le_bytes());
                hash.update(value);
            };
            match cell {
                Cell::Null => add(0, &[]),
                Cell::Number(number) => add(1, &number.to_le_bytes()),
                Cell::Text(text) => add(2, text.as_bytes()),
                Cell::Moment(moment) => add(3, &moment.micros().to_le_bytes()),
                Cell::Bytes(bytes) => add(4, bytes),
            }
        }
        self.rows += 1;
        for (sum, part) in self.sums.iter_mut().zip(hash.finalize().chunks_exact(8)) {
            *sum = sum.wrapping_add(part.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)));
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, ..] = self.sums;
        write!(f, "{} rows, hash {first:016x}", self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(rows: &[Row]) -> Digest {
        let mut digest = Digest::default();
        rows.iter().for_each(|row| digest.add(row));
        digest
    }

    #[test]
    fn a_digest_depends_on_every_row_and_not_on_their_order() {
        let (one, two) = (vec![Cell::Number(1), Cell::Null], vec![Cell::Number(2), Cell::Text("a".to_owned())]);
        assert_eq!(digest(&[one.clone(), two.clone()]), digest(&[two.clone(), one.clone()]));
        let others = [vec![Cell::Number(2), Cell::Null], vec![Cell::Null, Cell::Number(1)], vec![Cell::Number(1)]];
        for other in others {
            assert_ne!(digest(&[other.clone(), two.clone()]), digest(&[one.clone(), two.clone()]), "{other:?}");
        }
        let split = |first: &str, second: &str| vec![Cell::Text(first.to_owned()), Cell::Text(second.to_owned())];
        assert_ne!(digest(&[split("ab", "c")]), digest(&[split("a", "bc")]));
    }
}
