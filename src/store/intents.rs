//! Look-ups of intents: histories, lists and their pages.

use super::WebhookHistory;
use crate::domain::attempt::Attempt;
use crate::domain::intent::{Intent, IntentId, Status, TargetName};
use crate::domain::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub intent: Intent,
    pub attempts: Vec<Attempt>,
    pub webhook: Option<WebhookHistory>,
}

/// Which intents to list, without those of jobs, which are their tenants' alone; newest first, or in the order of their ids if those have to begin with something.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only those that a gateway gave this id, newest first, and then those whose own id begins with it; each once.
    pub prefix: Option<String>,
    pub status: Option<Status>,
    pub target: Option<TargetName>,
    /// Strictly after.
    pub created_after: Option<Timestamp>,
    /// Strictly before.
    pub created_before: Option<Timestamp>,
    pub limit: usize,
    /// Continue behind this one, as a page before said.
    pub behind: Option<PageCursor>,
}

impl ListQuery {
    pub(super) fn page_size(&self) -> usize {
        self.limit.max(1)
    }

    /// Whether anything but the id is asked for.
    pub(super) fn filters(&self) -> bool {
        self.status.is_some() || self.target.is_some() || self.created_after.is_some() || self.created_before.is_some()
    }
}

/// Where a page ended: in the order of arrival, or in that of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageCursor {
    /// What came later was on the page, this one the last. Not by its number, which counts others too.
    Newer { created_at: Timestamp, id: IntentId },
    /// The same among those that a gateway gave the id; behind them come those whose own id begins so.
    Message { created_at: Timestamp, id: IntentId },
    /// Among those whose own id begins so.
    Id(IntentId),
}

/// Ids in their order. One bound each way: of two an index would use whichever it likes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdRange {
    pub(super) from: String,
    /// `from` itself was on the page before.
    pub(super) behind: bool,
    pub(super) before: Option<String>,
}

impl IdRange {
    /// All that begin so and come behind that one. The ids of jobs, of which there may be any number, stand
    /// together and are stepped over.
    pub(super) fn of(prefix: &str, behind: Option<&PageCursor>) -> Vec<Self> {
        let before = after_prefix(prefix);
        let all = match behind {
            Some(PageCursor::Id(id)) if id.as_str() >= prefix => Self { from: id.to_string(), behind: true, before },
            _ => Self { from: prefix.to_owned(), behind: false, before },
        };
        let jobs = IntentId::OF_JOBS;
        let Some(after_jobs) = after_prefix(jobs) else { return vec![all] };
        let up_to = |end: &str| all.before.clone().filter(|before| before.as_str() <= end);
        let mut ranges = Vec::new();
        if *all.from < *jobs {
            let before = up_to(jobs).unwrap_or_else(|| jobs.to_owned());
            ranges.push(Self { before: Some(before), ..all.clone() });
        }
        if up_to(&after_jobs).is_none() {
            ranges.push(if all.from < after_jobs { Self { from: after_jobs, behind: false, ..all } } else { all });
        }
        ranges
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentPage {
    pub intents: Vec<Intent>,
    /// Where the next page starts, if there is one. A page may be short, or empty, and yet have a next.
    pub next: Option<PageCursor>,
}

impl IntentPage {
    /// A page of what was found in the order of arrival, which may be one more than asked for.
    pub(super) fn of_newest(query: &ListQuery, mut intents: Vec<Intent>) -> Self {
        let more = intents.len() > query.page_size();
        intents.truncate(query.page_size());
        let next = intents.last().filter(|_| more);
        let next = next.map(|last| PageCursor::Newer { created_at: last.created_at, id: last.id.clone() });
        Self { intents, next }
    }

    /// A page of what a search found by a gateway's id and then by the own one, which together may be one more than asked
    /// for. If they are not, `horizon` is up to where was looked, unless that is to the end.
    pub(super) fn of_search(
        query: &ListQuery,
        by_message: Vec<Intent>,
        mut by_id: Vec<Intent>,
        horizon: Option<PageCursor>,
    ) -> Self {
        let own_from = by_message.len();
        let mut intents = by_message;
        intents.append(&mut by_id);
        let more = intents.len() > query.page_size();
        intents.truncate(query.page_size());
        let next = match intents.last().filter(|_| more) {
            Some(last) if intents.len() > own_from => Some(PageCursor::Id(last.id.clone())),
            Some(last) => Some(PageCursor::Message { created_at: last.created_at, id: last.id.clone() }),
            None => horizon,
        };
        Self { intents, next }
    }
}

/// The least text that is greater than all that begin with `prefix`, by code points; none if there is no such.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // The next character, past the gap where no characters are.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}
