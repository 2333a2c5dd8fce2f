//! Opens a connection: looks up the name, connects, and negotiates TLS. If any of that fails, no byte of a request was sent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::wire::Stream;
use super::{CallError, LocalResourceError};
use crate::platform::clock::monotonic;
use crate::platform::errors::{BoxError, Described};

/// The timeout for name lookup, connecting and TLS together. The system repeats the first packet after 1, 3 and 7 s. A peer
/// that answered none of these is down, and other calls need the slot.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Scheme, host and port. Requests with the same origin can share connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub tls: bool,
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// The origin of an absolute http or https URL.
    pub(super) fn of(uri: &Uri) -> Result<Self, &'static str> {
        let (tls, port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err("it is not http or https"),
        };
        let host = uri.host().ok_or("it has no host")?.trim_start_matches('[').trim_end_matches(']');
        Ok(Self { tls, host: host.to_owned(), port: uri.port_u16().unwrap_or(port) })
    }

    /// The value of the header `Host`.
    pub(super) fn host_header(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// Opens a connection to an origin before `deadline`, and within [`CONNECT_TIMEOUT`].
pub(super) async fn connect(
    peer: &str,
    origin: &Origin,
    tls: &Arc<rustls::ClientConfig>,
    deadline: Instant,
) -> Result<Stream, CallError> {
    let deadline = deadline.min(monotonic() + CONNECT_TIMEOUT);
    let too_slow = |_| CallError::not_sent(format!("timed out while connecting to the {peer}"));
    let addresses = timeout_at(deadline, resolve(peer, origin)).await.map_err(too_slow)??;
    let stream = connect_to_any(peer, &addresses, deadline).await?;
    if !origin.tls {
        return Ok(Stream::Plain(stream));
    }
    let failed = |error: BoxError| CallError::not_sent(Described::new(format!("TLS with the {peer} failed"), error));
    let name = ServerName::try_from(origin.host.clone()).map_err(|error| failed(error.into()))?;
    let secured = timeout_at(deadline, TlsConnector::from(Arc::clone(tls)).connect(name, stream)).await;
    let stream = secured.map_err(too_slow)?.map_err(|error| failed(error.into()))?;
    Ok(Stream::Tls(Box::new(stream)))
}

async fn resolve(peer: &str, origin: &Origin) -> Result<Vec<SocketAddr>, CallError> {
    let not_found =
        |reason: BoxError| CallError::not_sent(Described::new(format!("cannot find the {peer}'s host"), reason));
    match tokio::net::lookup_host((origin.host.as_str(), origin.port)).await {
        Ok(addresses) => Some(addresses.collect::<Vec<_>>())
            .filter(|addresses| !addresses.is_empty())
            .ok_or_else(|| not_found("no address".into())),
        Err(error) => {
            // A resolver that cannot open a socket or a file reports an unknown name, so this tries to open a socket.
            let lacking = TcpSocket::new_v4().err().filter(|error| shortage(error).is_some());
            let error = lacking.unwrap_or(error);
            Err(match shortage(&error) {
                Some(what) => lacks(format!("cannot look up the {peer}'s host: {what}"), error),
                None => not_found(error.into()),
            })
        }
    }
}

/// Tries the addresses one after the other. Each gets an equal share of the remaining time, so that an address that does
/// not respond leaves time for the next one.
async fn connect_to_any(peer: &str, addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, CallError> {
    let mut failure = None;
    for (index, address) in addresses.iter().enumerate() {
        let now = monotonic();
        let left = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let until = now + deadline.saturating_duration_since(now) / left;
        let error = match timeout_at(until, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // With this option a request is sent immediately. If it cannot be set, the request is only delayed.
                let _ignored = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => match shortage(&error).filter(|_| is_local(&error, *address)) {
                Some(what) => lacks(format!("cannot connect to the {peer}: {what}"), error),
                None => CallError::not_sent(Described::new(format!("cannot connect to the {peer}"), error)),
            },
            Err(_) => CallError::not_sent(format!("timed out while connecting to the {peer}")),
        };
        // A local shortage is the result only if no address failed for another reason.
        if !matches!((&failure, &error), (Some(CallError::NotSent(_)), CallError::LocalResource(_))) {
            failure = Some(error);
        }
    }
    Err(failure.unwrap_or_else(|| CallError::not_sent(format!("cannot find the {peer}'s host: no address"))))
}

/// What ran out on this machine, with what to do about it, if that is what the error means.
pub(super) fn shortage(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => Some("this process has too many open files; raise its limit (ulimit -n)"),
        libc::ENFILE => Some("this machine has too many open files; raise fs.file-max"),
        libc::ENOBUFS | libc::ENOMEM => Some("this machine has no memory left for sockets"),
        libc::EADDRNOTAVAIL => Some("no local port is free; widen net.ipv4.ip_local_port_range"),
        _ => None,
    }
}

/// The error of a call that failed because something on this machine ran out.
pub(super) fn lacks(what: String, error: impl Into<BoxError>) -> CallError {
    LocalResourceError(Described::new(what, error).into()).into()
}

/// Whether a shortage is temporary and local. `EADDRNOTAVAIL` can mean that no port is free, which is, or that this machine
/// has no address of the family, which is not. To tell them apart, this connects a UDP socket, which needs a local address
/// but no TCP port.
fn is_local(error: &io::Error, address: SocketAddr) -> bool {
    if error.raw_os_error() != Some(libc::EADDRNOTAVAIL) {
        return true;
    }
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address));
    !matches!(connected, Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gives_its_origin_and_host_header() {
        for (uri, tls, host, port, header) in [
            ("http://gateway.test/sms/send", false, "gateway.test", 80, "gateway.test"),
            ("http://gateway.test:80/", false, "gateway.test", 80, "gateway.test"),
            ("https://gateway.test:80/", true, "gateway.test", 80, "gateway.test:80"),
            ("https://127.0.0.1", true, "127.0.0.1", 443, "127.0.0.1"),
            ("http://[::1]:8081/x", false, "::1", 8081, "[::1]:8081"),
            ("http://[::1]/x", false, "::1", 80, "[::1]"),
        ] {
            let origin = Origin::of(&uri.parse().unwrap()).unwrap();
            assert_eq!((origin.tls, origin.host.as_str(), origin.port), (tls, host, port), "{uri}");
            assert_eq!(origin.host_header(), header, "{uri}");
        }
        assert!(Origin::of(&"ftp://x".parse().unwrap()).is_err());
        assert!(Origin::of(&"/path".parse().unwrap()).is_err());
    }

    #[test]
    fn only_errors_about_local_resources_are_shortages() {
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL] {
            assert!(shortage(&io::Error::from_raw_os_error(code)).is_some(), "{code}");
        }
        for code in [libc::ECONNREFUSED, libc::ECONNRESET, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH] {
            assert!(shortage(&io::Error::from_raw_os_error(code)).is_none(), "{code}");
        }
        assert!(shortage(&io::Error::other("x")).is_none());
    }

    /// Loopback always has a local address, so only ports can run out.
    #[test]
    fn address_not_available_on_loopback_means_that_no_port_is_free() {
        let none = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        assert!(is_local(&none, "127.0.0.1:9".parse().unwrap()));
        assert!(is_local(&io::Error::from_raw_os_error(libc::EMFILE), "[100::1]:9".parse().unwrap()));
    }
}
