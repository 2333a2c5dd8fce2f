//! Opening a connection: name, address, TLS. Whatever fails here, nothing was sent.

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
use super::{CallError, shown};
use crate::platform::clock::monotonic;

/// Longest for name, address and TLS together. A first packet is repeated after 1, 3 and 7 s: a peer
/// that has answered none of them is not there, and the slot of the call is needed for others.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where requests may share connections: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub tls: bool,
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl Origin {
    pub fn of(uri: &Uri) -> Result<Self, &'static str> {
        let (tls, port) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err("it is not http or https"),
        };
        let host = uri.host().ok_or("it has no host")?.trim_start_matches('[').trim_end_matches(']');
        Ok(Self { tls, host: host.to_owned(), port: uri.port_u16().unwrap_or(port) })
    }

    /// The value of the header `Host`.
    pub fn host_header(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

pub async fn connect(
    peer: &str,
    origin: &Origin,
    tls: &Arc<rustls::ClientConfig>,
    deadline: Instant,
) -> Result<Stream, CallError> {
    let deadline = deadline.min(monotonic() + CONNECT_TIMEOUT);
    let too_slow = |_| CallError::NotSent(format!("timed out while connecting to the {peer}"));
    let addresses = timeout_at(deadline, resolve(peer, origin)).await.map_err(too_slow)??;
    let stream = connect_to_any(peer, &addresses, deadline).await?;
    if !origin.tls {
        return Ok(Stream::Plain(stream));
    }
    let failed = |what: String| CallError::NotSent(format!("TLS with the {peer} failed: {what}"));
    let name = ServerName::try_from(origin.host.clone()).map_err(|error| failed(error.to_string()))?;
    let secured = timeout_at(deadline, TlsConnector::from(Arc::clone(tls)).connect(name, stream)).await;
    let stream = secured.map_err(too_slow)?.map_err(|error| failed(shown(&error.to_string())))?;
    Ok(Stream::Tls(Box::new(stream)))
}

async fn resolve(peer: &str, origin: &Origin) -> Result<Vec<SocketAddr>, CallError> {
    let not_found = |what: &str| CallError::NotSent(format!("cannot find the {peer}'s host: {}", shown(what)));
    match tokio::net::lookup_host((origin.host.as_str(), origin.port)).await {
        Ok(addresses) => Some(addresses.collect::<Vec<_>>())
            .filter(|addresses| !addresses.is_empty())
            .ok_or_else(|| not_found("no address")),
        // A resolver that cannot open a socket or a file says the name is unknown.
        Err(error) => Err(match shortage(&error).or_else(|| shortage(&TcpSocket::new_v4().err()?)) {
            Some(what) => CallError::LocalResource(format!("cannot look up the {peer}'s host: {what}")),
            None => not_found(&error.to_string()),
        }),
    }
}

/// Tries the addresses in turn; each gets its share of the time, so that one that does not answer leaves
/// some for the next.
async fn connect_to_any(peer: &str, addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, CallError> {
    let mut failure = None;
    for (index, address) in addresses.iter().enumerate() {
        let now = monotonic();
        let left = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let until = now + deadline.saturating_duration_since(now) / left;
        let error = match timeout_at(until, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A request leaves at once; on failure it only leaves later.
                let _slower_without = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => match shortage(&error).filter(|_| is_local(&error, *address)) {
                Some(what) => CallError::LocalResource(format!("cannot connect to the {peer}: {what}")),
                None => CallError::NotSent(format!("cannot connect to the {peer}: {error}")),
            },
            Err(_) => CallError::NotSent(format!("timed out while connecting to the {peer}")),
        };
        // A shortage on this side is the result only if no address failed for another reason.
        if !matches!((&failure, &error), (Some(CallError::NotSent(_)), CallError::LocalResource(_))) {
            failure = Some(error);
        }
    }
    Err(failure.unwrap_or_else(|| CallError::NotSent(format!("cannot find the {peer}'s host: no address"))))
}

/// What this machine or process is short of, if that is what the error says.
pub fn shortage(error: &io::Error) -> Option<String> {
    let what = match error.raw_os_error()? {
        libc::EMFILE => "this process has too many open files; raise its limit (ulimit -n)",
        libc::ENFILE => "this machine has too many open files; raise fs.file-max",
        libc::ENOBUFS | libc::ENOMEM => "this machine is short of memory for sockets",
        libc::EADDRNOTAVAIL => "no local port is free; widen net.ipv4.ip_local_port_range",
        _ => return None,
    };
    Some(format!("{what} ({error})"))
}

/// "Address not available" means two things: no free port, or no address of this family on this machine,
/// which waiting does not change. A datagram socket needs the address only.
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
    fn origins_and_host_headers() {
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
    fn only_shortages_of_this_machine_are_shortages() {
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL] {
            assert!(shortage(&io::Error::from_raw_os_error(code)).is_some(), "{code}");
        }
        for code in [libc::ECONNREFUSED, libc::ECONNRESET, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH] {
            assert!(shortage(&io::Error::from_raw_os_error(code)).is_none(), "{code}");
        }
        assert!(shortage(&io::Error::other("x")).is_none());
    }

    /// The loopback always has an address to call from, so only ports can be short.
    #[test]
    fn an_address_that_can_be_called_from_here_lacks_a_port_only() {
        let none = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        assert!(is_local(&none, "127.0.0.1:9".parse().unwrap()));
        assert!(is_local(&io::Error::from_raw_os_error(libc::EMFILE), "[100::1]:9".parse().unwrap()));
    }
}
