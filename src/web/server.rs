//! The HTTP server: accepts connections up to a limit and serves each within the limits of [`connection`].
//!
//! It is made of the parts that actix-web's own `HttpServer` is made of, because that one gives no access to the stream
//! and to the lifetime of a connection.

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
use super::connection::table::{Admitted, Origins, Table};
use super::connection::{self, Closed, Connection};
use super::error::ApiError;
use super::{WebDeps, leaving, measure};
use crate::platform::descriptors::ConnectionLimits;

/// What every answer says to browsers; pages of the console say more.
pub(super) const NOSNIFF: (&str, &str) = ("X-Content-Type-Options", "nosniff");

/// How long a stopping server waits for requests under way; `waitSeconds` ends at 30.
const SHUTDOWN_SECONDS: u64 = 31;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 2048;

/// Connections of a worker's share that are kept free at most: new ones are accepted while those that they replace are being
/// closed.
const HEADROOM: usize = 16;

/// Bytes of incomplete heads and of answers that clients do not read, over all connections. Bodies have a limit of their own.
const CONNECTION_MEMORY: usize = 64 * 1024 * 1024;

/// Bytes of an answer that the kernel takes at once (it doubles the number). By default it takes up to 4 MiB a
/// connection, which clients that do not read could use up.
const SEND_BUFFER: u32 = 64 * 1024;

/// How long a connection that is refused may take to be told so; a new socket has room for it at once.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);

/// Takes the address, before anything else is begun that would have to be undone without it.
pub async fn bind(listen: &str) -> std::io::Result<TcpListener> {
    let mut failed = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host(listen).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Connections inherit it.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return listener.into_std(),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Half of the cores: taking requests in is less than half of the work, and more threads than cores
/// only take turns.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

/// Starts the server; it runs until its handle stops it.
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
    let room = share.saturating_sub((share / 8).clamp(1, HEADROOM)).max(1);
    let origins = Origins::new(limits.per_address);
    let builder = Server::build()
        .workers(workers)
        .max_concurrent_connections(share)
        .shutdown_timeout(SHUTDOWN_SECONDS)
        .disable_signals();
    let stopping = builder.graceful_shutdown_signal();
    let builder = builder.listen("http", listener, move || {
        let stopping = stopping.clone();
        let app = App::new()
            .wrap(DefaultHeaders::new().add(NOSNIFF))
            .wrap(from_fn(leaving::close_connections))
            .wrap(from_fn(measure::requests))
            .wrap(from_fn(connection::track::requests))
            .app_data(Data::new(deps.clone()))
            .configure(routes.clone());
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let stopping = stopping.clone();
                async move { stopping.notified().await }
            })
            .h1_write_buffer_size(connection::PIECE)
            .keep_alive(connection::IDLE_LIMIT)
            .client_request_timeout(connection::HEAD_LIMIT)
            .client_disconnect_timeout(connection::LEFTOVER_LIMIT)
            .on_connect_ext(|stream: &ClientStream, data| {
                data.insert::<Rc<Connection>>(Rc::clone(&stream.connection));
            })
            .finish(map_config(app, |()| AppConfig::default()));
        let (tls, origins, metrics) = (tls.clone(), Arc::clone(&origins), Arc::clone(&deps.metrics));
        fn_factory(move || {
            let table = Table::new(room, CONNECTION_MEMORY / workers, Arc::clone(&origins), Arc::clone(&metrics));
            let (tls, metrics) = (tls.clone(), Arc::clone(&metrics));
            http.new_service(()).map_ok(move |http| {
                let http = Rc::new(http);
                fn_service(move |tcp: TcpStream| {
                    let (http, tls, table, metrics) =
                        (Rc::clone(&http), tls.clone(), Rc::clone(&table), Arc::clone(&metrics));
                    async move {
                        let Some(admitted) = table.admit(tcp.peer_addr().ok().map(|peer| peer.ip())) else {
                            metrics.connection_closed(Closed::Refused.as_str());
                            refuse(tcp, tls.is_some()).await;
                            return Ok::<_, ()>(());
                        };
                        if let Some(why) = serve(http, tls, tcp, &admitted).await {
                            metrics.connection_closed(why.as_str());
                        }
                        Ok(())
                    }
                })
            })
        })
    })?;
    Ok(builder.run())
}

/// Serves all requests of one connection. Returns why the server closed it, unless it ended by itself.
async fn serve<S>(http: Rc<S>, tls: Option<TlsAcceptor>, tcp: TcpStream, admitted: &Admitted) -> Option<Closed>
where
    S: Service<(ClientStream, Protocol, Option<std::net::SocketAddr>)> + 'static,
{
    let connection = Rc::clone(&admitted.connection);
    let stream_connection = Rc::clone(&connection);
    let serving = async move {
        let peer = tcp.peer_addr().ok();
        let transport = match tls {
            Some(tls) => match tls.accept(tcp).await {
                Ok(stream) => Transport::Tls(Box::new(stream)),
                // A handshake that fails is the client's business; there is nobody to tell.
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

/// Tells the client that there is no room for it.
async fn refuse(mut tcp: TcpStream, encrypted: bool) {
    if encrypted {
        return;
    }
    let body = ApiError::Overloaded.json().to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\nconnection: close\r\nretry-after: 1\r\n\
         content-type: application/json\r\n\r\n{body}",
        body.len()
    );
    let _closed_all_the_same = tokio::time::timeout(REFUSAL_LIMIT, tcp.write_all(answer.as_bytes())).await;
}
