//! The binary: sets up TLS, hands over to the command line, returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Fails only if a provider is installed already, which is as good.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    submission_manager::cli::run()
}
