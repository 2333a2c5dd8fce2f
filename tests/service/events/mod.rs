//! The event feed over HTTP: what the tests of its parts share.

mod command;
mod pages;
mod readers;
mod streams;

use std::pin::Pin;

use awc::error::PayloadError;
use awc::http::header::HeaderMap;
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::Value;

use crate::support::{Answer, Api, PATIENCE};

/// One block of a stream: what stands between two empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: Option<String>,
    pub comments: usize,
}

impl Block {
    fn parse(text: &str) -> Self {
        let mut block = Self::default();
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("", _)) => block.comments += 1,
                Some(("id", value)) => block.id = Some(value.to_owned()),
                Some(("event", value)) => block.event = Some(value.to_owned()),
                Some(("data", value)) => block.data = Some(value.to_owned()),
                Some(("retry", value)) => assert!(value.parse::<u32>().is_ok(), "{text}"),
                _ => panic!("not a line of a stream: {line:?}"),
            }
        }
        block
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.data.as_ref().unwrap()).unwrap()
    }
}

/// A client of a stream.
pub(crate) struct Stream {
    body: Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, PayloadError>>>>,
    text: String,
    pub headers: HeaderMap,
}

impl Stream {
    pub(crate) async fn open(url: &str, path: &str, headers: &[(&str, &str)]) -> Result<Self, String> {
        let client = awc::Client::builder().timeout(PATIENCE).finish();
        let request =
            headers.iter().fold(client.get(format!("{url}{path}")), |request, header| request.insert_header(*header));
        let body = request.send().await.map_err(|error| error.to_string())?;
        if body.status() != 200 {
            return Err(body.status().to_string());
        }
        Ok(Self { headers: body.headers().clone(), body: Box::pin(body), text: String::new() })
    }

    /// The next block; `None` at the end of the stream, and an error if the connection breaks.
    pub(crate) async fn block(&mut self) -> Result<Option<Block>, String> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                return Ok(Some(Block::parse(block.trim_end())));
            }
            let chunk = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("the stream went silent");
            match chunk {
                Some(chunk) => self.text += std::str::from_utf8(&chunk.map_err(|error| error.to_string())?).unwrap(),
                None => {
                    return if self.text.is_empty() { Ok(None) } else { Err(format!("half a block: {}", self.text)) };
                }
            }
        }
    }

    /// The next event.
    pub(crate) async fn event(&mut self) -> Block {
        loop {
            let block = self.block().await.unwrap().expect("the stream has ended");
            if block.data.is_some() {
                return block;
            }
        }
    }
}

fn ids(answer: &Answer) -> Vec<String> {
    let json = answer.json();
    let events = json["events"].as_array().unwrap_or_else(|| panic!("no events in {json}"));
    events.iter().map(|event| event["intent"]["intentId"].as_str().unwrap().to_owned()).collect()
}

fn cursor(answer: &Answer) -> String {
    answer.json()["nextCursor"].as_str().unwrap_or_else(|| panic!("no cursor in {}", answer.text())).to_owned()
}

/// Submits an intent, and waits until it has ended.
async fn end(api: &Api, id: &str, target: &str, payload: Value) {
    let intent = api.submit(id, target, payload, "?waitSeconds=30").await.json();
    assert_ne!(intent["status"], "pending", "{intent}");
}

async fn metric(api: &Api, name: &str) -> u64 {
    let text = api.get("/metrics").await.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

async fn until_metric(api: &Api, name: &str, value: u64) {
    let line = format!("\n{name} {value}\n");
    api.until("/metrics", |answer| answer.text().contains(&line)).await;
}
