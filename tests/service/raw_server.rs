//! A server that writes every byte of its answers itself and records on which connection each request came.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, broadcast};

/// What a server does with one request.
#[derive(Clone)]
pub(crate) enum Step {
    /// Reads the whole request.
    Read,
    /// Reads the head of the request only.
    ReadHead,
    Send(Bytes),
    /// Waits, so that the bytes sent so far arrive in a packet of their own.
    Gap,
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Waits until the client has closed the connection.
    Hang,
}

/// A server that answers each request by the next script, whichever connection it uses.
pub(crate) struct Server {
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    scripts: Mutex<VecDeque<Vec<Step>>>,
    /// The number of the connection of each request.
    connections: Mutex<Vec<usize>>,
    /// Bytes to send without a request, on the connection of the last request.
    unsolicited: broadcast::Sender<Bytes>,
    said: Notify,
    closed: Notify,
}

impl Server {
    pub(crate) async fn start(scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            scripts: Mutex::new(scripts.into()),
            connections: Mutex::default(),
            unsolicited: broadcast::Sender::new(1),
            said: Notify::new(),
            closed: Notify::new(),
        });
        let serving = Arc::clone(&shared);
        actix::spawn(async move {
            let mut number = 0;
            while let Ok((socket, _)) = listener.accept().await {
                number += 1;
                socket.set_nodelay(true).unwrap();
                let shared = Arc::clone(&serving);
                actix::spawn(async move {
                    shared.serve(socket, number).await;
                    shared.closed.notify_one();
                });
            }
        });
        Self { url, shared }
    }

    /// Sends bytes without a request on the connection of the last request, and waits until they are sent.
    pub(crate) async fn send_unsolicited(&self, bytes: &'static str) {
        self.shared.unsolicited.send(Bytes::from_static(bytes.as_bytes())).unwrap();
        self.shared.said.notified().await;
    }

    /// Waits until the server has closed a connection.
    pub(crate) async fn until_closed(&self) {
        self.shared.closed.notified().await;
    }

    pub(crate) fn connections(&self) -> Vec<usize> {
        self.shared.connections.lock().unwrap().clone()
    }
}

impl Shared {
    async fn serve(&self, mut socket: TcpStream, number: usize) {
        let mut unsolicited = self.unsolicited.subscribe();
        let mut read = Vec::new();
        loop {
            tokio::select! {
                more = socket.read_buf(&mut read) => if !matches!(more, Ok(1..)) { return },
                Ok(bytes) = unsolicited.recv() => {
                    if self.connections.lock().unwrap().last() == Some(&number) {
                        socket.write_all(&bytes).await.unwrap();
                        self.said.notify_one();
                    }
                    continue;
                }
            }
            let Some(script) = self.scripts.lock().unwrap().pop_front() else { return };
            self.connections.lock().unwrap().push(number);
            for step in script {
                match step {
                    Step::Read => until(&mut socket, &mut read, whole).await,
                    Step::ReadHead => until(&mut socket, &mut read, head).await,
                    Step::Send(bytes) => {
                        let _client_may_be_gone = socket.write_all(&bytes).await;
                    }
                    Step::Gap => tokio::time::sleep(Duration::from_millis(20)).await,
                    Step::Close => return,
                    Step::Reset => {
                        socket.set_zero_linger().unwrap();
                        return;
                    }
                    Step::Hang => while matches!(socket.read_buf(&mut read).await, Ok(1..)) {},
                }
            }
            read.clear();
        }
    }
}

async fn until(socket: &mut TcpStream, read: &mut Vec<u8>, enough: fn(&[u8]) -> bool) {
    while !enough(read) {
        if !matches!(socket.read_buf(read).await, Ok(1..)) {
            return;
        }
    }
}

/// Whether the head of a request was read.
fn head(read: &[u8]) -> bool {
    read.windows(4).any(|bytes| bytes == b"\r\n\r\n")
}

/// Whether a whole request was read.
pub(crate) fn whole(read: &[u8]) -> bool {
    let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&read[..end]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    read.len() - end - 4 >= length.unwrap_or(0)
}

pub(crate) fn send(text: impl Into<String>) -> Step {
    Step::Send(Bytes::from(text.into()))
}
