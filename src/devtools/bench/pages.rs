//! How long the pages of the operator console take, on whatever is in the store.

use std::time::Duration;

use super::service::Deployment;
use crate::platform::clock::monotonic;

/// What operators ask for: a page each, with its name.
const PAGES: [(&str, &str); 13] = [
    ("overview", "/ui"),
    ("intents, newest", "/ui/intents"),
    ("accepted", "/ui/intents?status=accepted"),
    ("rejected", "/ui/intents?status=rejected"),
    ("pending", "/ui/intents?status=pending"),
    ("of a target", "/ui/intents?submissionTarget=bench.0"),
    ("of a target and rejected", "/ui/intents?submissionTarget=bench.0&status=rejected"),
    ("of a target and pending", "/ui/intents?submissionTarget=bench.0&status=pending"),
    ("of a time", "/ui/intents?createdBefore=2026-01-01T00:00:00Z"),
    ("by how an id begins", "/ui/intents?q=0"),
    ("by how an id begins, and rejected", "/ui/intents?q=0&status=rejected"),
    ("by a gateway's id that is nowhere", "/ui/intents?q=no-such-message"),
    ("targets", "/ui/targets"),
];
const TIMES: usize = 20;

/// How long a page took.
pub struct PageTime {
    pub name: &'static str,
    pub median: Duration,
    pub longest: Duration,
}

pub async fn measure(deployment: &Deployment) -> Result<Vec<PageTime>, String> {
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

pub fn text(times: &[PageTime]) -> String {
    let millis = |span: Duration| span.as_secs_f64() * 1000.0;
    let line = |page: &PageTime| {
        format!("  {:<34} {:>6.1} ms, at most {:.1}\n", page.name, millis(page.median), millis(page.longest))
    };
    format!("  pages of the console, {TIMES} times each\n{}", times.iter().map(line).collect::<String>())
}
