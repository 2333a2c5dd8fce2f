//! `/ui`: the overview page: the leader, what waits and what is in progress, and recent results and failures.

use actix_web::{HttpResponse, web};
use askama::Template;

use super::chart::{self, Chart};
use super::nav::Nav;
use super::wording::{duration_text, intent_href};
use super::{PageError, page};
use crate::domain::time::Timestamp;
use crate::store::{Overview, RECENT_MINUTES};
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/overview.html")]
struct OverviewPage<'a> {
    nav: Nav,
    overview: &'a Overview,
    oldest: Option<Oldest>,
    oldest_webhook: Option<String>,
    chart: Option<Chart>,
    recent_minutes: i64,
    holder_id: &'a str,
    leads_here: bool,
    clock_ahead: Option<String>,
}

struct Oldest {
    id: String,
    href: String,
    created_at: Timestamp,
    age: String,
}

/// The overview page.
pub(super) async fn show(deps: web::Data<WebDeps>, operator: Operator) -> Result<HttpResponse, PageError> {
    let overview = deps.store.overview().await?;
    let oldest = overview.oldest_pending.as_ref().map(|(id, created_at)| Oldest {
        id: id.to_string(),
        href: intent_href(id),
        created_at: *created_at,
        age: duration_text(overview.now.since(*created_at)),
    });
    page(&OverviewPage {
        nav: Nav::new("overview", operator).at(overview.now),
        oldest,
        oldest_webhook: overview.oldest_webhook.map(duration_text),
        chart: chart::of(overview.now, &overview.ended),
        recent_minutes: RECENT_MINUTES,
        holder_id: &deps.board.holder_id,
        leads_here: deps.board.lease().is_some(),
        clock_ahead: deps.store.clock_ahead().map(duration_text),
        overview: &overview,
    })
}
