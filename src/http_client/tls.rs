//! Which certificates of gateways, receivers and collectors are trusted.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use {path} as certificates for gateways and webhooks: {what}; name a PEM file with --gateway-ca or SM_GATEWAY_CA"
)]
pub struct CertificateError {
    path: String,
    what: String,
}

/// Trusts the public certificate authorities and, if a PEM file is given, those in it.
pub fn tls_config(extra: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, CertificateError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra {
        let fault = |what: String| CertificateError { path: path.display().to_string(), what };
        let mut added = 0;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))? {
            let certificate = certificate.map_err(|error| fault(error.to_string()))?;
            roots.add(certificate).map_err(|error| fault(error.to_string()))?;
            added += 1;
        }
        if added == 0 {
            return Err(fault("there is no certificate in it".to_owned()));
        }
    }
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    // HTTP/1.1 only: one request per connection at a time is what makes the outcome of a call certain.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
