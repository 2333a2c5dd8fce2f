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
use super::wording::{self, cause_words, intent_href};
use super::{PageError, page};
use crate::domain::intent::{Intent, IntentSeq, Status};
use crate::store::IntentPage;
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/intents.html")]
struct IntentsPage {
    nav: Nav,
    filter: Filter,
    chips: Vec<Chip>,
    tabs: Vec<Tab>,
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

/// An intent of the list.
pub(super) struct Row {
    pub href: String,
    /// Why it failed, in words.
    pub cause: String,
    /// Which rule of its contract ended it, if that is not the cause itself.
    pub rule: &'static str,
    /// The list of all intents with this cause.
    pub cause_href: String,
    /// Whether it can be redriven or cancelled.
    pub selectable: bool,
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
    let found = match filter.is_valid() {
        true => deps.store.list(query).await?,
        false => IntentPage { intents: Vec::new(), next: None },
    };
    let failed = found.intents.iter().filter(|intent| intent.state.is_failed()).map(|intent| intent.seq);
    let failed: Vec<_> = failed.collect();
    let causes = if failed.is_empty() { HashMap::new() } else { deps.store.causes(failed).await? };
    let tab = |label: &'static str, status: &str| Tab {
        label,
        href: filter.with(&[("status", status)]),
        current: filter.value("status") == status,
    };
    let tabs = [tab("all", "")].into_iter().chain(Status::ALL.map(|status| tab(status.as_str(), status.as_str())));
    let presets = PRESETS.map(|(label, after)| Tab {
        label,
        href: filter.with(&[("createdAfter", after), ("createdBefore", "")]),
        current: filter.value("createdAfter") == after && filter.value("createdBefore").is_empty(),
    });
    page(&IntentsPage {
        nav: Nav::new("intents", operator).at(now),
        chips: filter.chips(),
        tabs: tabs.collect(),
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
            selectable: intent.state.status() != Status::Accepted,
            intent,
        }
    }
}
