//! Cursors of the event feeds: the text that stands for a position.
//!
//! Cursors are opaque to clients. The first letter names the feed, so a cursor of another list is refused.

use crate::api::intents::cursor_time;
use crate::domain::intent::IntentSeq;
use crate::domain::job::SubmissionId;
use crate::domain::time::Timestamp;
use crate::store::{EventPosition, EventsAfter};

/// The feeds, which have cursors of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedKind {
    /// Intents of clients.
    Intents,
    /// Jobs of one tenant.
    Jobs,
}

/// The value of `after` for the end of the feed.
const NOW: &str = "now";

impl FeedKind {
    /// The cursor of a position in the feed of intents, or of a position after a whole transaction.
    fn of_position(self, position: EventPosition) -> String {
        let letter = match self {
            Self::Intents => 'e',
            Self::Jobs => 'j',
        };
        match position {
            EventPosition { at, seq: IntentSeq::LAST } => format!("{letter}{:x}", at.micros().max(0)),
            EventPosition { at, seq } => format!("{letter}{:x}.{:x}", at.micros().max(0), seq.0.cast_unsigned()),
        }
    }

    /// The cursor of a reader at `position`, whose last event had the position and the job of `last`.
    ///
    /// A cursor of jobs contains nothing that the tenant does not know: a sequence number would tell one tenant how
    /// many jobs others submit. Between the events of one transaction, the cursor therefore names the tenant's last
    /// job.
    pub(in crate::api) fn cursor(self, position: EventPosition, last: Option<(EventPosition, SubmissionId)>) -> String {
        if self == Self::Intents || position.seq == IntentSeq::LAST {
            return self.of_position(position);
        }
        match last.filter(|(last, _)| last.at == position.at) {
            Some((_, id)) => format!("j{id}"),
            None => self.of_position(EventPosition::after_all(before(position.at))),
        }
    }

    /// Parses the value of `after` or `Last-Event-ID`. Accepts only text that [`Self::cursor`] makes, and `now`.
    pub(crate) fn parse(self, text: &str) -> Option<EventsAfter> {
        if text == NOW {
            return Some(EventsAfter::Now);
        }
        let position = |at: &str, seq| Some(EventPosition { at: cursor_time(at)?, seq });
        let (after, cursor) = match self {
            Self::Intents => {
                let rest = text.strip_prefix('e')?;
                let position = match rest.split_once('.') {
                    Some((at, seq)) => position(at, IntentSeq(u64::from_str_radix(seq, 16).ok()?.cast_signed()))?,
                    None => position(rest, IntentSeq::LAST)?,
                };
                (EventsAfter::Position(position), self.of_position(position))
            }
            Self::Jobs => {
                let rest = text.strip_prefix('j')?;
                match SubmissionId::parse(rest) {
                    Some(id) => (EventsAfter::Job(id), format!("j{id}")),
                    None => {
                        let position = position(rest, IntentSeq::LAST)?;
                        (EventsAfter::Position(position), self.of_position(position))
                    }
                }
            }
        };
        (cursor == text).then_some(after)
    }

    /// What a cursor must be, in error messages.
    pub(in crate::api) fn expected(self) -> &'static str {
        match self {
            Self::Intents => "a cursor of this feed (a nextCursor, or the id of an event of its stream), or now",
            Self::Jobs => "a cursor of this feed (a next_cursor, or the id of an event of its stream), or now",
        }
    }
}

/// The moment before; no two transactions share a moment.
fn before(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::job::fixtures::submission_id;

    const AT: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn position(seq: i64) -> EventPosition {
        EventPosition { at: AT, seq: IntentSeq(seq) }
    }

    #[test]
    fn cursors_are_read_back_by_their_own_feed_only() {
        let whole = EventPosition::after_all(AT);
        let id = submission_id(3);
        for (kind, other, at, last, after) in [
            (FeedKind::Intents, FeedKind::Jobs, position(7), None, EventsAfter::Position(position(7))),
            (FeedKind::Intents, FeedKind::Jobs, position(-7), None, EventsAfter::Position(position(-7))),
            (FeedKind::Intents, FeedKind::Jobs, whole, None, EventsAfter::Position(whole)),
            (FeedKind::Jobs, FeedKind::Intents, whole, Some((position(-7), id)), EventsAfter::Position(whole)),
            (FeedKind::Jobs, FeedKind::Intents, position(-7), Some((position(-7), id)), EventsAfter::Job(id)),
            (FeedKind::Jobs, FeedKind::Intents, position(-9), Some((position(-7), id)), EventsAfter::Job(id)),
        ] {
            let text = kind.cursor(at, last);
            assert_eq!((kind.parse(&text), other.parse(&text)), (Some(after), None), "{text}");
        }
        // A transaction of which the tenant has seen nothing.
        let earlier = EventPosition { at: before(AT), ..position(1) };
        let text = FeedKind::Jobs.cursor(position(-9), Some((earlier, id)));
        assert_eq!(FeedKind::Jobs.parse(&text), Some(EventsAfter::Position(EventPosition::after_all(before(AT)))));
        for kind in [FeedKind::Intents, FeedKind::Jobs] {
            assert_eq!(kind.parse("now"), Some(EventsAfter::Now));
            let made_up =
                ["", "e", "j", "e1.", "e-1", "e1.-", "eA", "e01", "t1.YQ", "e1.1.1", "NOW", "j1.1", "e 1", "jx"];
            for text in made_up {
                assert_eq!(kind.parse(text), None, "{text}");
            }
        }
    }
}
