//! TLS for clients that connect without a proxy in front: loads a certificate chain and its key from PEM files.

use std::path::{Path, PathBuf};

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why the service cannot serve HTTPS with the configured files. The text repeats nothing of their content.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot use {} as the TLS certificate: {source}; set --tls-cert or SM_TLS_CERT to a PEM file", path.display())]
    Certificate { path: PathBuf, source: TlsFileError },
    #[error("cannot use {} as the TLS key: {source}; set --tls-key or SM_TLS_KEY to a PEM file", path.display())]
    Key { path: PathBuf, source: TlsFileError },
}

/// What is wrong with one PEM file.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error("the file contains no certificate")]
    NoCertificate,
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

/// Reads both files and builds the TLS configuration of the server.
pub fn server_config(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let certificate_error = |source| TlsError::Certificate { path: certificate.to_owned(), source };
    let key_error = |source| TlsError::Key { path: key.to_owned(), source };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| certificate_error(error.into()))?;
    if chain.is_empty() {
        return Err(certificate_error(TlsFileError::NoCertificate));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| key_error(error.into()))?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| key_error(error.into()))
}
