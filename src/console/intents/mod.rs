//! `/ui/intents`: the list of intents with a filter. [`export`] exports the list, and [`bulk`] cancels selected
//! intents.

pub(super) mod bulk;
pub(super) mod export;
mod filter;

use std::collections::HashMap;

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;

use self::filter::{Chip, Filter};
use super::nav::Nav;
use super::wording::{self, cause_words, grouped, intent_href};
use super::{PageError, page};
use crate::domain::intent::{Intent, IntentSeq, Status};
use crate::store::{BoundedCount, IntentPage, ListOrder, MAX_COUNTED, StatusCounts};
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/intents.html")]
struct IntentsPage {
    nav: Nav,
    filter: Filter,
    chips: Vec<Chip>,
    tabs: Vec<StatusTab>,
    /// Whether the tabs have counts; a search has none.
    counted: bool,
    /// Links to the other orders; empty for a search, which has an order of its own.
    orders: Vec<Tab>,
    presets: Vec<Tab>,
    targets: Vec<String>,
    rows: Vec<Row>,
    /// The address that the page polls for changes; only on the first page.
    live: Option<String>,
    previous: Option<String>,
    next: Option<String>,
    exports: Vec<(&'static str, String)>,
}

/// A link that changes one part of the filter.
struct Tab {
    label: &'static str,
    href: String,
    current: bool,
}

/// A link to the intents with one status.
struct StatusTab {
    tab: Tab,
    /// How many there are; empty if that is not known.
    count: String,
}

/// An intent of the list.
pub(super) struct Row {
    pub href: String,
    /// Why it failed, in words.
    pub cause: String,
    /// Which rule of its contract ended it, if that is not the cause itself.
    pub rule: &'static str,
    /// The list of all intents with this cause.
    pub cause_href: String,
    pub intent: Intent,
}

/// Periods that are one click away.
const PRESETS: [(&str, &str); 5] =
    [("any time", ""), ("15 minutes", "15m"), ("1 hour", "1h"), ("24 hours", "24h"), ("today", "today")];

/// The list of intents.
pub(super) async fn show(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let now = deps.clock.now();
    let (filter, query) = Filter::parse(request.query_string(), now);
    let counted = filter.is_valid() && StatusCounts::can_count(&query);
    let counts = if counted { Some(deps.store.status_counts(query.clone()).await?) } else { None };
    let found = match filter.is_valid() {
        true => deps.store.list(query).await?,
        false => IntentPage { intents: Vec::new(), next: None },
    };
    let failed = found.intents.iter().filter(|intent| intent.state.is_failed()).map(|intent| intent.seq);
    let failed: Vec<_> = failed.collect();
    let causes = if failed.is_empty() { HashMap::new() } else { deps.store.causes(failed).await? };
    let tabs = [None].into_iter().chain(Status::ALL.map(Some));
    let tabs = tabs.map(|status| StatusTab::of(status, &filter, counts.as_ref()));
    let presets = PRESETS.map(|(label, after)| Tab {
        label,
        href: filter.with(&[("createdAfter", after), ("createdBefore", "")]),
        current: filter.value("createdAfter") == after && filter.value("createdBefore").is_empty(),
    });
    page(&IntentsPage {
        nav: Nav::new("intents", operator).at(now),
        chips: filter.chips(),
        tabs: tabs.collect(),
        counted,
        orders: orders(&filter),
        presets: presets.into(),
        targets: wording::known_targets(&deps),
        live: (filter.is_valid() && filter.is_first()).then(|| filter.here()),
        previous: filter.previous(),
        next: found.next.as_ref().map(|next| filter.next(next)),
        exports: vec![("CSV", filter.export("csv")), ("NDJSON", filter.export("ndjson"))],
        rows: found.intents.into_iter().map(|intent| Row::of(intent, &causes, &filter)).collect(),
        filter,
    })
}

impl StatusTab {
    fn of(status: Option<Status>, filter: &Filter, counts: Option<&StatusCounts>) -> Self {
        let value = status.map(Status::as_str).unwrap_or_default();
        let counted = counts.map(|counts| status.map_or_else(|| counts.all(), |status| counts.of(status)));
        Self {
            tab: Tab {
                label: status.map_or("all", Status::as_str),
                href: filter.with(&[("status", value)]),
                current: filter.value("status") == value,
            },
            count: counted.map(count_text).unwrap_or_default(),
        }
    }
}

/// A bounded count: "12", or "10,000+" if there may be more. Empty if nothing is known about it.
fn count_text(counted: BoundedCount) -> String {
    match (counted.intents, counted.or_more) {
        (0, true) => String::new(),
        (intents, true) => format!("{}+", grouped(intents.min(MAX_COUNTED))),
        (intents, false) => grouped(intents),
    }
}

/// The orders that a list can have.
fn orders(filter: &Filter) -> Vec<Tab> {
    let orders = [("newest first", ListOrder::NewestFirst), ("oldest first", ListOrder::OldestFirst)];
    let tab = |(label, order)| Tab { label, href: filter.in_order(order), current: filter.order == order };
    if filter.value("q").is_empty() { orders.map(tab).into() } else { Vec::new() }
}

impl Row {
    fn of(intent: Intent, causes: &HashMap<IntentSeq, String>, filter: &Filter) -> Self {
        let own = causes.get(&intent.seq).map(String::as_str);
        let cause_href = own.map(|cause| {
            let status = intent.state.status().as_str();
            filter.with(&[("cause", cause), ("status", status), ("q", "")])
        });
        let cause = own.map(cause_words).unwrap_or_default();
        let rule = intent.state.exhausted_reason().map(|reason| cause_words(reason.as_str())).unwrap_or_default();
        Self {
            rule: if rule == cause { "" } else { rule },
            cause: cause.to_owned(),
            cause_href: cause_href.unwrap_or_default(),
            href: intent_href(&intent.id),
            intent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_never_says_more_than_was_counted() {
        let text = |intents, or_more| count_text(BoundedCount { intents, or_more });
        assert_eq!(text(0, false), "0");
        assert_eq!(text(0, true), "");
        assert_eq!(text(MAX_COUNTED * 3, true), format!("{}+", grouped(MAX_COUNTED)));
        assert_eq!(text(1234, false), "1,234");
    }
}
