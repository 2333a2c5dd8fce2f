//! Measures how long the pages of the operator console take with the current content of the store.

use std::time::Duration;

use super::error::BenchResult;
use super::service::Deployment;
use crate::platform::clock::monotonic;

/// The pages to measure, each with a name for the report.
const PAGES: [(&str, &str); 21] = [
    ("overview", "/ui"),
    ("overview of a day", "/ui?range=day"),
    ("failures of an hour", "/ui/failures?period=1h"),
    ("failures of a day", "/ui/failures?period=24h"),
    ("failures of a day, one target", "/ui/failures?period=24h&submissionTarget=bench.0"),
    ("intents, newest", "/ui/intents"),
    ("exhausted", "/ui/intents?status=exhausted"),
    ("one cause", "/ui/intents?status=exhausted&cause=gateway+answered+HTTP+503"),
    ("one cause that is rare", "/ui/intents?cause=no+such+cause"),
    ("accepted", "/ui/intents?status=accepted"),
    ("rejected", "/ui/intents?status=rejected"),
    ("pending", "/ui/intents?status=pending"),
    ("one target", "/ui/intents?submissionTarget=bench.0"),
    ("one target, rejected", "/ui/intents?submissionTarget=bench.0&status=rejected"),
    ("one target, pending", "/ui/intents?submissionTarget=bench.0&status=pending"),
    ("before a date", "/ui/intents?createdBefore=2026-01-01T00:00:00Z"),
    ("id prefix", "/ui/intents?q=0"),
    ("id prefix, rejected", "/ui/intents?q=0&status=rejected"),
    ("unknown gateway message id", "/ui/intents?q=no-such-message"),
    ("targets", "/ui/targets"),
    ("one target's page", "/ui/targets/bench.0"),
];
const TIMES: usize = 20;

/// How long a page took.
pub(super) struct PageTime {
    pub name: &'static str,
    pub median: Duration,
    pub longest: Duration,
}

pub(super) async fn measure(deployment: &Deployment) -> BenchResult<Vec<PageTime>> {
    let mut times = Vec::new();
    for (name, path) in PAGES {
        let mut took = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let began = monotonic();
            deployment.get(path).await?;
            took.push(monotonic().duration_since(began));
        }
        took.sort();
        times.push(PageTime { name, median: took[TIMES / 2], longest: took[TIMES - 1] });
    }
    Ok(times)
}

pub(super) fn text(times: &[PageTime]) -> String {
    let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let line = |page: &PageTime| {
        format!("  {:<34} {:>6.1} ms, max {:.1} ms\n", page.name, millis(page.median), millis(page.longest))
    };
    format!(
        "  pages of the console, {TIMES} requests each, median and maximum\n{}",
        times.iter().map(line).collect::<String>()
    )
}
