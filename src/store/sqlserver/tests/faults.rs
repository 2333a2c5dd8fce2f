//! Faults while the answer to a batch arrives: the connection is cut, the server reports an error, or it sends garbage,
//! at each result set of a batch that starts attempts.
//!
//! At that time the batch is committed. If it were repeated, it would find its attempts already started and report them
//! as stale, so they would stay open in the current term and never be made.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tiberius::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::store::conformance::attempts::OneSlot;
use crate::store::conformance::{intent_id, writes};
use crate::store::{FencedWrites, StartOnInsert, StartResult};

/// What the proxy does instead of sending a result set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It closes the connection.
    Cut,
    /// It sends a server error with this number.
    Error(u32),
    /// It sends a token that does not exist.
    UnknownToken,
    /// It renames a column, so that the rows cannot be read.
    UnknownColumn,
}

/// A fault, the index of the result set at which it happens, and the number of result sets in the answer. Answers with
/// another number pass unchanged.
#[derive(Clone, Copy, Debug)]
struct Plan {
    fault: Fault,
    at: usize,
    of: usize,
}

/// Forwards TDS between the store and the server, and injects one fault on request.
#[derive(Clone)]
struct Proxy {
    address: SocketAddr,
    plan: Arc<Mutex<Option<Plan>>>,
}

const HEADER: usize = 8;
const END_OF_MESSAGE: u8 = 1;
const RESULT_SET: u8 = 0x81;

impl Proxy {
    async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self { address: listener.local_addr().unwrap(), plan: Arc::default() };
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                let (from_server, mut to_server) = TcpStream::connect(&upstream).await.unwrap().into_split();
                let serving = serving.clone();
                tokio::spawn(async move {
                    let mut from_client = from_client;
                    tokio::select! {
                        _ = copy(&mut from_client, &mut to_server) => {}
                        () = serving.answers(from_server, to_client) => {}
                    }
                });
            }
        });
        proxy
    }

    /// Forwards the server's messages to the client until a fault closes the connection.
    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut message = Vec::new();
        loop {
            let mut header = [0; HEADER];
            if from.read_exact(&mut header).await.is_err() {
                return;
            }
            let mut body = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]])) - HEADER];
            if from.read_exact(&mut body).await.is_err() {
                return;
            }
            message.extend_from_slice(&body);
            if header[1] & END_OF_MESSAGE == 0 {
                continue;
            }
            let goes_on = self.spoil(&mut message);
            if send(&mut to, header[0], &message, goes_on).await.is_err() || !goes_on {
                return;
            }
            message.clear();
        }
    }

    /// Injects the planned fault if it is for this message. Returns false if the connection must be closed after it.
    fn spoil(&self, message: &mut Vec<u8>) -> bool {
        let sets = result_sets(message);
        let mut plan = self.plan.lock().unwrap();
        let Some(Plan { fault, at, .. }) = plan.take_if(|plan| plan.of == sets.len()) else { return true };
        let place = sets[at];
        match fault {
            Fault::Cut => message.truncate(place),
            Fault::Error(number) => {
                message.truncate(place);
                message.extend(error_tokens(number));
            }
            Fault::UnknownToken => message[place] = 0,
            Fault::UnknownColumn => message[place + NAME + 1] = b'?',
        }
        fault != Fault::Cut
    }
}

/// The offset of the first column's name in a result set: token, column count, user type, flags and type come before
/// it.
const NAME: usize = 1 + 2 + 4 + 2 + 2;

/// Returns the offsets of the result sets in an answer. Every result set of the store begins with a number or a time,
/// whose types take two bytes, and has column names in lower case.
fn result_sets(message: &[u8]) -> Vec<usize> {
    const NUMBER_OR_TIME: [u8; 2] = [0x26, 0x2a];
    let is_set = |place: &usize| {
        let token = &message[*place..];
        let Some(&length) = token.get(NAME) else { return false };
        let name = token.get(NAME + 1..NAME + 1 + 2 * usize::from(length)).unwrap_or_default();
        token[0] == RESULT_SET
            && NUMBER_OR_TIME.contains(&token[NAME - 2])
            && length >= 3
            && !name.is_empty()
            && name.chunks(2).all(|unit| (unit[0].is_ascii_lowercase() || unit[0] == b'_') && unit[1] == 0)
    };
    (0..message.len()).filter(is_set).collect()
}

/// The tokens ERROR and DONE, with which a server ends an answer.
fn error_tokens(number: u32) -> Vec<u8> {
    let text: Vec<u8> = "injected".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut error = number.to_le_bytes().to_vec();
    error.extend([1, 13]); // State and class.
    error.extend(u16::try_from(text.len() / 2).unwrap().to_le_bytes());
    error.extend(&text);
    error.extend([0, 0]); // No server, no procedure.
    error.extend(1_u32.to_le_bytes());
    let mut tokens = vec![0xaa];
    tokens.extend(u16::try_from(error.len()).unwrap().to_le_bytes());
    tokens.extend(error);
    tokens.extend([0xfd, 2, 0, 0, 0]);
    tokens.extend(0_u64.to_le_bytes());
    tokens
}

/// Sends a message in packets, without the end mark if `whole` is false.
async fn send(to: &mut OwnedWriteHalf, kind: u8, message: &[u8], whole: bool) -> std::io::Result<()> {
    const PACKET: usize = 4096 - HEADER;
    let packets = message.chunks(PACKET).count();
    for (number, body) in message.chunks(PACKET).enumerate() {
        let last = whole && number + 1 == packets;
        let length = u16::try_from(body.len() + HEADER).unwrap().to_be_bytes();
        let header = [kind, u8::from(last), length[0], length[1], 0, 0, u8::try_from(number % 256).unwrap(), 0];
        to.write_all(&header).await?;
        to.write_all(body).await?;
    }
    to.flush().await
}

/// The same connection string for the address of the proxy, and without encryption, so that the proxy can read the
/// messages.
fn via(server: &str, address: SocketAddr) -> String {
    let replaced = |pair: &str| ["server=", "encrypt="].iter().any(|key| pair.to_ascii_lowercase().starts_with(key));
    let rest = server.split(';').filter(|pair| !replaced(pair));
    format!(
        "Server=tcp:{},{};Encrypt=DANGER_PLAINTEXT;{}",
        address.ip(),
        address.port(),
        rest.collect::<Vec<_>>().join(";")
    )
}

#[tokio::test]
async fn an_answer_that_is_lost_is_in_doubt_and_its_batch_is_not_repeated() {
    let Some(test) = TestDatabase::create().await else { return };
    let direct = test.store();
    let proxy = Proxy::start(Config::from_ado_string(&test.server).unwrap().get_addr()).await;
    let store = SqlServerStore::new(&settings(&via(&test.server, proxy.address), &test.name), true, metrics());
    store.prepare().await.unwrap();
    let term = store.acquire_lease("lease".into(), "me".into(), Duration::from_secs(600)).await.unwrap().unwrap().term;
    // The answer has three result sets: the time, the new intent, and the started attempt.
    const SETS: usize = 3;
    let passing = [1205, 1222, 3960, 40_197, 40_613, 50_000].map(Fault::Error);
    let faults = [Fault::Cut, Fault::UnknownToken, Fault::UnknownColumn].into_iter().chain(passing);
    for (number, (fault, at)) in faults.flat_map(|fault| (0..SETS).map(move |at| (fault, at))).enumerate() {
        if matches!(fault, Fault::Error(_)) && at == 0 {
            continue; // Before any result such an error says the truth, which is not so here.
        }
        let (old, new) = (format!("old {number}"), format!("new {number}"));
        let Submitted::Created(waits) = submit_to(&store, new_intent(&old, &max_attempts(3), b"{}")).await else {
            panic!("not created");
        };
        let lanes = store.schedule_snapshot(100).await.unwrap().lanes;
        let waiting = lanes.into_iter().flat_map(|lane| lane.waiting).find(|waiting| waiting.seq == waits.seq).unwrap();
        let batch = WriteBatch {
            submits: vec![new_intent(&new, &max_attempts(3), b"{}")],
            start_on_insert: Some(StartOnInsert { term: term.clone(), slots: Arc::new(OneSlot::default()) }),
            fenced: Some(FencedWrites { starts: vec![waiting.clone()], ..writes(&term) }),
            ..WriteBatch::default()
        };
        *proxy.plan.lock().unwrap() = Some(Plan { fault, at, of: SETS });
        let result = store.commit(batch).await.map(|receipt| receipt.fenced.unwrap().starts);
        assert!(proxy.plan.lock().unwrap().is_none(), "the fault was not made");
        assert!(matches!(result, Err(StoreError::Unavailable(_))), "{fault:?} at {at}: {result:?}");
        for id in [old, new] {
            let found = direct.find(intent_id(&id)).await.unwrap().expect("it was committed");
            assert!(found.intent.attempt_open, "{id} was started, once");
            assert_eq!(found.intent.attempt_count, 1);
        }
        // The store still works, and reports the started attempt as stale when it is started again.
        let again = FencedWrites { starts: vec![waiting], ..writes(&term) };
        let receipt = store.commit(WriteBatch { fenced: Some(again), ..WriteBatch::default() }).await.unwrap();
        assert!(matches!(receipt.fenced.unwrap().starts[0], Ok(StartResult::Stale)));
    }
}
