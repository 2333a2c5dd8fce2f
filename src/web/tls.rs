//! https for clients, where no proxy does it: a certificate chain and its key out of PEM files.

use std::path::{Path, PathBuf};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot use {} as the certificate of the service: {what}; name a PEM file with --tls-cert or SM_TLS_CERT", path.display())]
    Certificate { path: PathBuf, what: String },
    #[error("cannot use {} as its key: {what}; name a PEM file with --tls-key or SM_TLS_KEY", path.display())]
    Key { path: PathBuf, what: String },
}

/// Reads both. An error repeats nothing of what is in them.
pub fn server_config(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let fault = |what: String| TlsError::Certificate { path: certificate.to_owned(), what };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| fault(error.to_string()))?;
    if chain.is_empty() {
        return Err(fault("there is no certificate in it".to_owned()));
    }
    let key_fault = |what: String| TlsError::Key { path: key.to_owned(), what };
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| key_fault(error.to_string()))?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| key_fault(error.to_string()))
}
