//! Reading and purging the audit log: what the store is asked for, and what it answers.

use std::time::Duration;

use crate::domain::actor::ActorKind;
use crate::domain::audit::{AuditAction, AuditEntry, ChainLink};
use crate::domain::audit_chain::{BrokenChain, ChainCheck};
use crate::domain::time::Timestamp;

/// Entries of which actor to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditActor {
    /// The actors with this name, of every kind.
    Named(String),
    /// The actors of this kind who are not known by name.
    Nameless(ActorKind),
}

impl AuditActor {
    /// Reads what people are shown as the actor: a name, or the kind of an actor without one.
    pub fn of_label(text: &str) -> Self {
        ActorKind::parse(text).map_or_else(|| Self::Named(text.to_owned()), Self::Nameless)
    }

    /// The name as it is stored: an actor without a name has an empty one.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::Nameless(_) => "",
        }
    }

    /// The kind, if only one kind is to be listed.
    pub(super) fn kind(&self) -> Option<ActorKind> {
        match self {
            Self::Named(_) => None,
            Self::Nameless(kind) => Some(*kind),
        }
    }
}

/// Which entries to list. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Only entries that were made after this moment.
    pub after: Option<Timestamp>,
    /// Only entries that were made before this moment.
    pub before: Option<Timestamp>,
    pub actor: Option<AuditActor>,
    pub action: Option<AuditAction>,
    pub limit: usize,
    /// Continue with older entries than this one: the `next` of the page before.
    pub older_than: Option<i64>,
}

/// A page of the audit log, the newest entry first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPage {
    pub entries: Vec<AuditEntry>,
    /// Set if there is a next page.
    pub next: Option<i64>,
}

impl AuditPage {
    /// Stores read one entry more than the page has, to know whether there is a next page.
    pub(super) fn of(mut entries: Vec<AuditEntry>, limit: usize) -> Self {
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|last| last.id);
        Self { entries, next }
    }
}

/// A part of the chain, the oldest entry first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChain {
    pub entries: Vec<AuditEntry>,
    /// The newest entry, as the store has recorded it apart from the log.
    pub head: ChainLink,
}

/// Asks for one transaction that deletes old entries of the audit log.
#[derive(Clone, Copy, Debug)]
pub struct AuditPurge {
    /// Entries are kept for this long, and until the end of their period.
    pub keep_for: Duration,
    /// The length of a period, counted from 1970. A purge is an entry itself; with periods there is one in each at most.
    pub period: Duration,
    /// How many entries to delete at most.
    pub limit: usize,
}

impl AuditPurge {
    /// Entries from before this moment are deleted.
    pub(super) fn before(&self, now: Timestamp) -> Timestamp {
        let period = i64::try_from(self.period.as_micros()).unwrap_or(i64::MAX).max(1);
        let cut = (now - self.keep_for).micros();
        Timestamp::from_micros(cut.saturating_sub(cut.rem_euclid(period)))
    }

    /// Which of the oldest entries to delete: all up to this one. Entries whose chain is broken are kept, because they are the
    /// evidence of a change.
    pub(super) fn last_to_delete(
        &self,
        oldest: Vec<AuditEntry>,
        now: Timestamp,
    ) -> Result<Option<ChainLink>, BrokenChain> {
        let before = self.before(now);
        let (mut check, mut last) = (ChainCheck::new(None), None);
        for entry in oldest.into_iter().take_while(|entry| entry.at < before) {
            let link = entry.link();
            check.add(entry)?;
            last = Some(link);
        }
        Ok(last)
    }
}

/// The result of [`AuditPurge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditPurged {
    /// So many entries were deleted.
    Deleted(usize),
    /// Nothing was deleted, because the chain of the oldest entries is broken.
    Broken(BrokenChain),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_ends_with_a_period() {
        let day = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        let purge = |keep_for| AuditPurge { keep_for, period: day(1), limit: 1 };
        let before = |now: &str, keep_for| purge(keep_for).before(Timestamp::parse(now).unwrap());
        let midnight = Timestamp::parse("2026-11-16T00:00:00Z");
        assert_eq!(Some(before("2026-11-17T12:00:00Z", day(1))), midnight);
        assert_eq!(Some(before("2026-11-17T00:00:00Z", day(1))), midnight);
        assert_eq!(Some(before("2026-11-16T23:59:59Z", Duration::ZERO)), midnight);
    }

    #[test]
    fn a_label_is_a_name_or_a_kind() {
        assert_eq!(AuditActor::of_label("ann"), AuditActor::Named("ann".to_owned()));
        assert_eq!(AuditActor::of_label("loopback"), AuditActor::Nameless(ActorKind::Loopback));
    }
}
