//! The HTTP server: accepts connections up to a limit and serves each within the limits of [`connection`].
//!
//! It is built from `actix-server` and `actix-http`, which actix-web's `HttpServer` also uses, because `HttpServer` gives
//! no access to the byte stream and the lifetime of a connection.

use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::{HttpService, Protocol};
use actix_server::Server;
use actix_service::{Service, ServiceFactory, fn_factory, fn_service, map_config};
use actix_web::App;
use actix_web::dev::AppConfig;
use actix_web::middleware::{DefaultHeaders, from_fn};
use actix_web::web::{Data, ServiceConfig};
use futures_util::TryFutureExt;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::connection::bounded::Bounded;
use super::connection::stream::{ClientStream, Transport};
use super::connection::table::{AddressCounts, Admitted, ConnectionTable};
use super::connection::{self, CloseReason, Connection};
use super::error::ApiError;
use super::{WebDeps, request_metrics, shutdown};
use crate::platform::descriptors::ConnectionLimits;

/// The header for browsers that every response has. Pages of the console have more.
pub(super) const NOSNIFF: (&str, &str) = ("X-Content-Type-Options", "nosniff");

/// The header that makes browsers use https for a year. Only responses over https have it.
const STRICT_TRANSPORT: (&str, &str) = ("Strict-Transport-Security", "max-age=31536000");

/// How long a stopping server waits for requests in progress. `waitSeconds` is at most 30.
const SHUTDOWN_SECONDS: u64 = 31;

/// How many connections the operating system queues until they are accepted.
const BACKLOG: u32 = 2048;

/// The most connections of a worker's share that stay free, so that new connections are accepted while the ones that they
/// replace are still closing.
const HEADROOM: usize = 16;

/// The memory for incomplete heads and for responses that clients do not read, over all connections. Request bodies have a
/// limit of their own.
const CONNECTION_MEMORY: usize = 64 * 1024 * 1024;

/// The size of a socket's send buffer, which the kernel doubles. By default it grows to 4 MiB for each connection, and
/// clients that do not read could fill all of them.
const SEND_BUFFER: u32 = 64 * 1024;

/// How long writing the 503 to a refused connection may take. The buffer of a new socket is empty, so it rarely waits.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);

/// Binds the address to listen on. Call it before anything that would have to be undone if the address is in use.
pub async fn bind(listen: &str) -> std::io::Result<TcpListener> {
    let mut failed = std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address");
    for address in tokio::net::lookup_host(listen).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Accepted connections inherit this.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return listener.into_std(),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The number of HTTP worker threads: half of the cores, rounded up. Handling requests is less than half of the work, and
/// more threads than cores only compete with the threads that execute intents.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

/// Starts the server, which runs until its handle stops it.
pub fn start(
    deps: WebDeps,
    routes: impl Fn(&mut ServiceConfig) + Clone + Send + 'static,
    listener: TcpListener,
    tls: Option<rustls::ServerConfig>,
    limits: ConnectionLimits,
) -> std::io::Result<Server> {
    let tls = tls.map(|mut tls| {
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(tls))
    });
    let workers = workers();
    let share = (limits.total / workers).max(1);
    let capacity = share.saturating_sub((share / 8).clamp(1, HEADROOM)).max(1);
    let addresses = AddressCounts::new(limits.per_address);
    let builder = Server::build()
        .workers(workers)
        .max_concurrent_connections(share)
        .shutdown_timeout(SHUTDOWN_SECONDS)
        .disable_signals();
    let https = tls.is_some();
    let stopping = builder.graceful_shutdown_signal();
    let builder = builder.listen("http", listener, move || {
        let stopping = stopping.clone();
        let headers = DefaultHeaders::new().add(NOSNIFF);
        let app = App::new()
            .wrap(if https { headers.add(STRICT_TRANSPORT) } else { headers })
            .wrap(from_fn(shutdown::close_connections))
            .wrap(from_fn(request_metrics::record))
            .wrap(from_fn(connection::track::track_requests))
            .app_data(Data::new(deps.clone()))
            .configure(routes.clone());
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let stopping = stopping.clone();
                async move { stopping.notified().await }
            })
            .h1_write_buffer_size(connection::CHUNK_BYTES)
            .keep_alive(connection::IDLE_LIMIT)
            .client_request_timeout(connection::HEAD_LIMIT)
            .client_disconnect_timeout(connection::LEFTOVER_LIMIT)
            .on_connect_ext(|stream: &ClientStream, data| {
                data.insert::<Rc<Connection>>(Rc::clone(&stream.connection));
            })
            .finish(map_config(app, |()| AppConfig::default()));
        let (tls, addresses, metrics) = (tls.clone(), Arc::clone(&addresses), Arc::clone(&deps.metrics));
        fn_factory(move || {
            let max_held = CONNECTION_MEMORY / workers;
            let table = ConnectionTable::new(capacity, max_held, Arc::clone(&addresses), Arc::clone(&metrics));
            let (tls, metrics) = (tls.clone(), Arc::clone(&metrics));
            http.new_service(()).map_ok(move |http| {
                let http = Rc::new(http);
                fn_service(move |tcp: TcpStream| {
                    let (http, tls, table, metrics) =
                        (Rc::clone(&http), tls.clone(), Rc::clone(&table), Arc::clone(&metrics));
                    async move {
                        let Some(admitted) = table.admit(tcp.peer_addr().ok().map(|peer| peer.ip())) else {
                            metrics.connection_closed(CloseReason::Refused.as_str());
                            refuse(tcp, tls.is_some()).await;
                            return Ok::<_, ()>(());
                        };
                        if let Some(reason) = serve(http, tls, tcp, &admitted).await {
                            metrics.connection_closed(reason.as_str());
                        }
                        Ok(())
                    }
                })
            })
        })
    })?;
    Ok(builder.run())
}

/// Serves all requests of one connection. Returns why the server closed it, or `None` if the connection ended normally.
async fn serve<S>(http: Rc<S>, tls: Option<TlsAcceptor>, tcp: TcpStream, admitted: &Admitted) -> Option<CloseReason>
where
    S: Service<(ClientStream, Protocol, Option<std::net::SocketAddr>)> + 'static,
{
    let connection = Rc::clone(&admitted.connection);
    let stream_connection = Rc::clone(&connection);
    let serving = async move {
        let peer = tcp.peer_addr().ok();
        // A response larger than one write buffer would otherwise wait up to 40 ms in the middle for the client's delayed
        // acknowledgement. Without this option the connection is only slower.
        let _best_effort = tcp.set_nodelay(true);
        let transport = match tls {
            Some(tls) => match tls.accept(tcp).await {
                Ok(stream) => Transport::Tls(Box::new(stream)),
                // After a failed handshake no response can be sent.
                Err(_) => return,
            },
            None => Transport::Plain(tcp),
        };
        let stream = ClientStream::new(transport, stream_connection);
        if std::future::poll_fn(|cx| http.poll_ready(cx)).await.is_ok() {
            let _logged_by_actix = http.call((stream, Protocol::Http1, peer)).await;
        }
    };
    Bounded::new(serving, connection).await
}

/// Sends a 503 to a connection that exceeds the limits. With TLS it only closes the connection, because a response would
/// need a handshake first.
async fn refuse(mut tcp: TcpStream, encrypted: bool) {
    if encrypted {
        return;
    }
    let body = ApiError::Overloaded.json().to_string();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\nconnection: close\r\nretry-after: 1\r\n\
         content-type: application/json\r\n\r\n{body}",
        body.len()
    );
    // The connection closes whether or not the write succeeds.
    let _ignored = tokio::time::timeout(REFUSAL_LIMIT, tcp.write_all(response.as_bytes())).await;
}
