//! Readers of the event feed during a chaos run: one asks for pages, one follows the stream. Each goes on from its cursor
//! after every failure, at whichever instance the proxy chooses. At the end both must have seen what the store has.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use crate::events::Stream;
use crate::support::{Api, PATIENCE};

/// A reader that hears nothing for this long connects again, as one that cannot wait for a frozen instance would.
const SILENCE: Duration = Duration::from_secs(3);

/// The events that the readers saw, in order.
#[derive(Default)]
pub(crate) struct Readers {
    pages: RefCell<Vec<Value>>,
    stream: RefCell<Vec<Value>>,
    /// How often the stream broke or ended.
    broken: RefCell<usize>,
}

impl Readers {
    /// Follows the feed in both ways. Never returns.
    pub(crate) async fn follow(&self, url: &str) {
        tokio::join!(self.follow_pages(url), self.follow_stream(url));
    }

    async fn follow_pages(&self, url: &str) {
        let api = Api::with_patience(url, SILENCE);
        let mut after = String::new();
        loop {
            match api.try_get(&format!("/v1/events?limit=7&waitSeconds=1&after={after}")).await {
                Ok(answer) if answer.status == 200 => {
                    let mut page = answer.json();
                    after = page["nextCursor"].as_str().unwrap().to_owned();
                    let Value::Array(events) = page["events"].take() else { panic!("no events") };
                    self.pages.borrow_mut().extend(events);
                }
                Ok(answer) => {
                    assert!([502, 503, 504].contains(&answer.status.as_u16()), "{}: {}", answer.status, answer.text());
                    pause().await;
                }
                Err(_) => pause().await,
            }
        }
    }

    async fn follow_stream(&self, url: &str) {
        let mut after = String::new();
        loop {
            let last = [("Last-Event-ID", after.as_str())];
            let opened = Stream::open(url, "/v1/events/stream", &last);
            match tokio::time::timeout(SILENCE, opened).await {
                Ok(Ok(mut stream)) => {
                    while let Ok(Ok(Some(block))) = tokio::time::timeout(SILENCE, stream.block()).await {
                        after = block.id.clone().unwrap_or(after);
                        self.stream.borrow_mut().extend(block.data.is_some().then(|| block.json()));
                    }
                }
                Ok(Err(error)) => {
                    let refused = error.starts_with(|c: char| c.is_ascii_digit());
                    assert!(
                        !refused || ["502", "503", "504"].iter().any(|status| error.starts_with(status)),
                        "{error}"
                    );
                }
                Err(_) => {}
            }
            *self.broken.borrow_mut() += 1;
            pause().await;
        }
    }

    /// Waits until both readers have seen as many events as there are.
    pub(crate) async fn until_seen(&self, count: usize) {
        let looking = async {
            while self.pages.borrow().len() < count || self.stream.borrow().len() < count {
                pause().await;
            }
        };
        // If they do not get there, the comparison says what they missed.
        let _compared_in_any_case = tokio::time::timeout(PATIENCE, looking).await;
    }

    /// Compares what the readers saw with all events that the service has now. Returns what differs.
    pub(crate) fn violations(&self, all: &[Value]) -> Vec<String> {
        let mut found = Vec::new();
        for (reader, seen) in [("pages", &*self.pages.borrow()), ("stream", &*self.stream.borrow())] {
            let mut times: HashMap<&str, usize> = HashMap::new();
            for event in seen {
                *times.entry(event["eventId"].as_str().unwrap()).or_default() += 1;
            }
            for event in all {
                match times.remove(event["eventId"].as_str().unwrap()) {
                    Some(1) => {}
                    Some(times) => found.push(format!("the reader of the {reader} saw {times} times {event}")),
                    None => found.push(format!("the reader of the {reader} missed {event}")),
                }
            }
            found.extend(times.keys().map(|id| format!("the reader of the {reader} saw {id}, which does not exist")));
            if found.is_empty() && seen.as_slice() != all {
                found.push(format!("the reader of the {reader} saw another order"));
            }
        }
        found
    }

    /// How many events were seen, and how often the stream broke.
    pub(crate) fn summary(&self) -> String {
        let (pages, stream) = (self.pages.borrow().len(), self.stream.borrow().len());
        format!("{pages} events read from pages and {stream} from a stream that broke {} times", self.broken.borrow())
    }
}

/// All events that the service has, read in one go.
pub(crate) async fn all_events(api: &Api) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let mut page = api.get(&format!("/v1/events?limit=1000&after={after}")).await.json();
        let Value::Array(events) = page["events"].take() else { panic!("no events in {page}") };
        all.extend(events);
        after = page["nextCursor"].as_str().unwrap().to_owned();
        if page["more"] != true {
            return all;
        }
    }
}

/// Paces the readers after a failure. No assertion depends on it.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_difference_is_found() {
        let event = |id: &str| json!({ "eventId": id });
        let [a, b, c] = ["a", "b", "c"].map(event);
        let all = [a.clone(), b.clone(), c.clone()];
        let violations = |pages: &[&Value], stream: &[&Value]| {
            let owned = |events: &[&Value]| RefCell::new(events.iter().map(|event| (*event).clone()).collect());
            Readers { pages: owned(pages), stream: owned(stream), broken: RefCell::default() }.violations(&all).len()
        };
        assert_eq!(violations(&[&a, &b, &c], &[&a, &b, &c]), 0);
        assert_eq!(violations(&[&a, &c], &[&a, &b, &c]), 1, "one is missing");
        assert_eq!(violations(&[&a, &b, &c], &[&a, &b, &b, &c]), 1, "one was seen twice");
        assert_eq!(violations(&[&b, &a, &c], &[&a, &b, &c]), 1, "another order");
        assert_eq!(violations(&[&a, &b, &c], &[&a, &b, &c, &event("d")]), 1, "one does not exist");
    }
}
