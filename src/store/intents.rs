//! Queries for intents: histories, lists and their pages.

use super::WebhookHistory;
use super::failures::Examined;
use crate::domain::attempt::Attempt;
use crate::domain::intent::{Intent, IntentId, Status, TargetName};
use crate::domain::redrive::RedriveId;
use crate::domain::time::Timestamp;

/// An intent with its finished attempts and its webhook event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub intent: Intent,
    pub attempts: Vec<Attempt>,
    pub webhook: Option<WebhookHistory>,
    /// The intent that repeats this one, if it was redriven.
    pub redriven_as: Option<IntentId>,
}

/// The order of a list without a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    #[default]
    NewestFirst,
    OldestFirst,
}

/// Which intents to list. Intents of jobs are never listed, because only their tenants may see them. With a `prefix` the order
/// is the one described there.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Searches by id: first come the intents to which a gateway gave exactly this message id, newest first, and then those
    /// whose own id starts with this text, in the order of their ids. No intent is listed twice.
    pub prefix: Option<String>,
    pub status: Option<Status>,
    pub target: Option<TargetName>,
    /// Only intents that this redrive created.
    pub redrive: Option<RedriveId>,
    /// Only intents created after this moment.
    pub created_after: Option<Timestamp>,
    /// Only intents created before this moment.
    pub created_before: Option<Timestamp>,
    /// Further conditions. They cannot be combined with a `prefix`.
    pub examined: Examined,
    /// Ignored with a `prefix`.
    pub order: ListOrder,
    pub limit: usize,
    /// Continue after this position: the `next` of the page before.
    pub after: Option<PageCursor>,
}

impl ListQuery {
    /// Returns how many intents a page has, at least one.
    pub(super) fn page_size(&self) -> usize {
        self.limit.max(1)
    }

    /// The queries whose intents a list with further conditions examines: one for each status that can meet them, because
    /// each status has its own index.
    pub(super) fn examined_queries(&self) -> Vec<Self> {
        let statuses = match self.status {
            Some(status) => vec![Some(status)],
            None if self.examined.cause.is_some() => vec![Some(Status::Rejected), Some(Status::Exhausted)],
            None => vec![None],
        };
        // An intent that ended before a moment was also created before it.
        let created_before = [self.created_before, self.examined.ended_before].into_iter().flatten().min();
        statuses.into_iter().map(|status| Self { status, created_before, ..self.clone() }).collect()
    }

    /// Whether the query has filters besides the id.
    pub(super) fn filters(&self) -> bool {
        self.status.is_some()
            || self.target.is_some()
            || self.redrive.is_some()
            || self.created_after.is_some()
            || self.created_before.is_some()
    }
}

/// The position at which a page of intents ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageCursor {
    /// In a list without a search: the last intent of the page, after which the list goes on in its order. It does not contain
    /// the intent's number, because numbers count the intents of others too.
    Newer { created_at: Timestamp, id: IntentId },
    /// In a search: the last intent that was found by a gateway's message id. Intents that are found by their own id follow.
    Message { created_at: Timestamp, id: IntentId },
    /// In a search: the last intent that was found by its own id.
    Id(IntentId),
}

/// A range of intent ids. It has a single bound in each direction, because with two a database may use the worse one in its
/// index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdRange {
    pub(super) from: String,
    /// Whether the range excludes `from` itself, because it was on the page before.
    pub(super) excludes_from: bool,
    pub(super) before: Option<String>,
}

impl IdRange {
    /// Returns the ranges of all ids that start with `prefix` and come after the cursor. They leave out the ids of jobs, which
    /// share a prefix of their own and may be very many.
    pub(super) fn of(prefix: &str, after: Option<&PageCursor>) -> Vec<Self> {
        let before = after_prefix(prefix);
        let all = match after {
            Some(PageCursor::Id(id)) if id.as_str() >= prefix => {
                Self { from: id.to_string(), excludes_from: true, before }
            }
            _ => Self { from: prefix.to_owned(), excludes_from: false, before },
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
            ranges.push(if all.from < after_jobs {
                Self { from: after_jobs, excludes_from: false, ..all }
            } else {
                all
            });
        }
        ranges
    }
}

/// One page of a list of intents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentPage {
    pub intents: Vec<Intent>,
    /// Set if there may be a next page. A page that is short or empty can have a next page, because a search examines a
    /// limited number of intents for each page.
    pub next: Option<PageCursor>,
}

impl IntentPage {
    /// Makes a page of a list without a search. Stores read one intent more than the page has, to know whether there is a next
    /// page.
    pub(super) fn of_list(query: &ListQuery, mut intents: Vec<Intent>) -> Self {
        let more = intents.len() > query.page_size();
        intents.truncate(query.page_size());
        let next = intents.last().filter(|_| more);
        let next = next.map(|last| PageCursor::Newer { created_at: last.created_at, id: last.id.clone() });
        Self { intents, next }
    }

    /// Makes a page of a list for which stores examine intents one by one: each part has the intents that one index found,
    /// in the order of the list, and the last intent that was examined if there may be more after it.
    pub(super) fn of_examined(query: &ListQuery, parts: Vec<ExaminedPart>) -> Self {
        // Grows in the order of the list.
        let place = |intent: &Intent| match query.order {
            ListOrder::NewestFirst => -i128::from(intent.seq.0),
            ListOrder::OldestFirst => i128::from(intent.seq.0),
        };
        let first_horizon =
            parts.iter().filter_map(|part| part.horizon.as_ref()).min_by_key(|intent| place(intent)).cloned();
        let mut intents: Vec<_> = parts.into_iter().flat_map(|part| part.intents).collect();
        // Behind the horizon of one part, others may have been examined further; the next page does that again.
        if let Some(horizon) = &first_horizon {
            intents.retain(|intent| place(intent) <= place(horizon));
        }
        intents.sort_by_key(place);
        let page = Self::of_list(query, intents);
        let horizon = first_horizon.map(|last| PageCursor::Newer { created_at: last.created_at, id: last.id });
        Self { next: page.next.or(horizon), ..page }
    }

    /// Makes a page of what a search found by a gateway's message id and by the intents' own ids. Stores read one intent more
    /// than the page has. If they found fewer, `horizon` is the position up to which they searched; `None` is the end.
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

/// What one index found for a list with conditions that stores check one by one.
pub(super) struct ExaminedPart {
    pub(super) intents: Vec<Intent>,
    /// The last intent that was examined, if there may be more after it.
    pub(super) horizon: Option<Intent>,
}

/// Returns the smallest text, by code points, that is greater than all texts that start with `prefix`; `None` if there is
/// none.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // The next character; between these two there are only surrogates, which are no characters.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}
