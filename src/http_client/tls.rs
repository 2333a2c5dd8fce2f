//! The TLS configuration of outgoing calls: which certificate authorities are trusted.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::platform::errors::BoxError;

/// The file of additional certificate authorities cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read certificate authorities from {path}: {source}; name a PEM file with --gateway-ca or SM_GATEWAY_CA"
)]
pub struct CertificateError {
    path: String,
    source: BoxError,
}

/// Trusts the public certificate authorities and those in the PEM file `extra`, if there is one.
pub fn tls_config(extra: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, CertificateError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra {
        let invalid = |source: BoxError| CertificateError { path: path.display().to_string(), source };
        let mut added = 0;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| invalid(error.into()))? {
            let certificate = certificate.map_err(|error| invalid(error.into()))?;
            roots.add(certificate).map_err(|error| invalid(error.into()))?;
            added += 1;
        }
        if added == 0 {
            return Err(invalid("it contains no certificate".into()));
        }
    }
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    // Only HTTP/1.1 is offered. With one request at a time on a connection, it is known which bytes of a request were sent.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
