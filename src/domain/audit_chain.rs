//! Checks the chain of the audit log, from the oldest entry that is kept to the newest.

use super::audit::{AuditAction, AuditEntry, ChainHash, ChainLink};
use super::time::Timestamp;

/// What is wrong with the chain, and at which entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {id}: {what}")]
pub struct BrokenChain {
    pub id: i64,
    pub what: String,
}

impl BrokenChain {
    fn at<T>(id: i64, what: impl Into<String>) -> Result<T, Self> {
        Err(Self { id, what: what.into() })
    }
}

/// A purge that the chain records: it deleted all entries up to `last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedPurge {
    /// The entry that records it.
    pub id: i64,
    pub at: Timestamp,
    pub last: ChainLink,
}

impl RecordedPurge {
    fn of(entry: &AuditEntry) -> Option<Self> {
        if entry.action != AuditAction::PurgeAuditLog.as_str() {
            return None;
        }
        let details: serde_json::Value = serde_json::from_str(&entry.details).ok()?;
        let hash = details.get("lastHash")?.as_str().and_then(ChainHash::parse)?;
        let last = ChainLink { id: details.get("lastId")?.as_i64()?, hash };
        Some(Self { id: entry.id, at: entry.at, last })
    }
}

/// A chain without errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntactChain {
    pub entries: u64,
    /// The oldest and the newest entry; `None` if the log is empty.
    pub ends: Option<(AuditEntry, AuditEntry)>,
    /// The last purge, if entries were purged.
    pub purge: Option<RecordedPurge>,
}

/// Checks entries one after the other. It keeps a constant amount of memory.
pub struct ChainCheck {
    /// A number and a hash that were noted outside the database.
    expected: Option<ChainLink>,
    found_expected: bool,
    ends: Option<(AuditEntry, AuditEntry)>,
    entries: u64,
    purge: Option<RecordedPurge>,
}

impl ChainCheck {
    /// Starts a check. `expected` must be an entry of the chain, or the last one that was purged.
    pub fn new(expected: Option<ChainLink>) -> Self {
        Self { expected, found_expected: false, ends: None, entries: 0, purge: None }
    }

    /// Checks the next entry.
    pub fn add(&mut self, entry: AuditEntry) -> Result<(), BrokenChain> {
        let before = match &self.ends {
            Some((_, last)) => last.link(),
            // Where the chain begins is checked at the end, when the purges are known.
            None => entry.previous_link(),
        };
        if entry.id != before.id + 1 {
            let (first, last) = (before.id + 1, entry.id - 1);
            let what = if first == last { "it is missing".to_owned() } else { format!("all up to {last} are missing") };
            return BrokenChain::at(first, what);
        }
        if entry.hash != entry.computed_hash() {
            return BrokenChain::at(entry.id, "its fields do not match its hash: it was changed");
        }
        if entry.previous_hash != before.hash {
            let what = format!("it does not continue entry {}: one of the two was replaced", before.id);
            return BrokenChain::at(entry.id, what);
        }
        for link in [before, entry.link()] {
            if self.expected.is_some_and(|expected| expected.id == link.id) {
                self.found_expected = true;
                if self.expected != Some(link) {
                    let what = format!("it has the hash {}, which is not the expected one: it was replaced", link.hash);
                    return BrokenChain::at(link.id, what);
                }
            }
        }
        self.purge = RecordedPurge::of(&entry).or(self.purge.take());
        self.entries += 1;
        self.ends = Some(match self.ends.take() {
            Some((first, _)) => (first, entry),
            None => (entry.clone(), entry),
        });
        Ok(())
    }

    /// Ends the check. `head` is the newest entry according to the store.
    pub fn finish(self, head: ChainLink) -> Result<IntactChain, BrokenChain> {
        let Self { expected, found_expected, ends, entries, purge } = self;
        let newest = ends.as_ref().map_or(ChainLink::START, |(_, last)| last.link());
        if newest.id < head.id {
            let what = format!("it is missing, as are all up to {}, the newest one", head.id);
            return BrokenChain::at(newest.id + 1, what);
        }
        if newest != head {
            return BrokenChain::at(newest.id, "it is not the newest entry that the store has recorded");
        }
        if let Some((first, _)) = &ends {
            let purged = purge.as_ref().map_or(ChainLink::START, |purge| purge.last);
            if first.previous_link() != purged {
                let what = "the chain does not begin after the entries that it records as purged: some were removed or put back";
                return BrokenChain::at(first.id, what);
            }
        }
        match expected.filter(|_| !found_expected) {
            None => Ok(IntactChain { entries, ends, purge }),
            Some(expected) if expected.id > newest.id => {
                let what = format!("it is expected, but the newest entry is {}", newest.id);
                BrokenChain::at(expected.id, what)
            }
            Some(expected) => {
                let what = "it was purged, so it cannot be compared; use a newer entry";
                BrokenChain::at(expected.id, what)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::actor::Actor;
    use crate::domain::actor::fixtures::somebody;
    use crate::domain::audit::NewAuditEntry;
    use crate::domain::intent::TargetName;

    fn resumed(number: usize) -> NewAuditEntry {
        NewAuditEntry::resume_target(&somebody(), &TargetName::parse(&format!("target-{number}")).unwrap())
    }

    fn chain(count: usize) -> Vec<AuditEntry> {
        let mut entries: Vec<AuditEntry> = Vec::new();
        for number in 0..count {
            let previous = entries.last().map_or(ChainLink::START, AuditEntry::link);
            entries.push(resumed(number).stored(previous, i64::try_from(number).unwrap() * 10));
        }
        entries
    }

    fn check(entries: &[AuditEntry], head: ChainLink, expected: Option<ChainLink>) -> Result<IntactChain, BrokenChain> {
        let mut check = ChainCheck::new(expected);
        entries.iter().try_for_each(|entry| check.add(entry.clone()))?;
        check.finish(head)
    }

    fn broken_at(entries: &[AuditEntry], head: ChainLink) -> i64 {
        check(entries, head, None).expect_err("the chain is broken").id
    }

    #[test]
    fn an_unchanged_chain_is_intact() {
        let empty = check(&[], ChainLink::START, None).unwrap();
        assert_eq!((empty.entries, empty.ends), (0, None));
        let all = chain(5);
        let intact = check(&all, all[4].link(), Some(all[2].link())).unwrap();
        assert_eq!(intact.entries, 5);
        assert_eq!(intact.ends.map(|(first, last)| (first.id, last.id)), Some((1, 5)));
    }

    #[test]
    fn changed_removed_and_inserted_entries_are_found() {
        let all = chain(6);
        let head = all[5].link();
        for place in 0..6 {
            let mut changed = all.clone();
            changed[place].actor_name = "nobody".to_owned();
            assert_eq!(broken_at(&changed, head), all[place].id);
            let mut rehashed = changed;
            rehashed[place].hash = rehashed[place].computed_hash();
            assert_eq!(broken_at(&rehashed, head), (all[place].id + 1).min(6), "the next one does not continue it");
            let mut without = all.clone();
            without.remove(place);
            assert_eq!(broken_at(&without, head), if place == 0 { 2 } else { all[place].id });
        }
        let mut swapped = all.clone();
        swapped.swap(2, 3);
        assert_eq!(broken_at(&swapped, head), 3);
        assert_eq!(broken_at(&[], head), 1, "all are missing");
        let mut extra = all.clone();
        extra.push(resumed(9).stored(head, 99));
        assert_eq!(broken_at(&extra, head), 7, "the store has not appended it");
    }

    #[test]
    fn the_oldest_entries_may_only_be_missing_if_the_chain_records_a_purge_of_them() {
        let mut all = chain(4);
        let purge = NewAuditEntry::purge(&Actor::service("me"), &all[1].link(), Timestamp::from_micros(15));
        all.push(purge.stored(all[3].link(), 40));
        let head = all[4].link();
        let intact = check(&all[2..], head, Some(all[1].link())).unwrap();
        assert_eq!(intact.entries, 3);
        assert_eq!(intact.purge.map(|purge| (purge.id, purge.last)), Some((5, all[1].link())));
        assert_eq!(broken_at(&all[3..], head), 4, "more are missing than were purged");
        assert_eq!(broken_at(&all, head), 1, "they should be gone");
        assert_eq!(check(&all[2..], head, Some(all[0].link())).unwrap_err().id, 1, "it was purged");
        let mut later = all.clone();
        let purge = NewAuditEntry::purge(&Actor::service("me"), &all[3].link(), Timestamp::from_micros(35));
        later.push(purge.stored(head, 50));
        assert!(check(&later[4..], later[5].link(), None).is_ok(), "the last purge counts");
    }

    #[test]
    fn a_rewritten_chain_does_not_fit_a_link_that_was_noted_elsewhere() {
        let all = chain(3);
        let noted = all[1].link();
        let mut rewritten = vec![all[0].clone()];
        rewritten.push(resumed(7).stored(all[0].link(), 11));
        rewritten.push(resumed(2).stored(rewritten[1].link(), 20));
        let head = rewritten[2].link();
        assert!(check(&rewritten, head, None).is_ok(), "the chain alone does not show it");
        assert_eq!(check(&rewritten, head, Some(noted)).unwrap_err().id, 2);
        let cut = &all[..1];
        assert_eq!(check(cut, cut[0].link(), Some(noted)).unwrap_err().id, 2);
    }
}
