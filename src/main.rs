//! The `submission-manager` binary. It installs the TLS provider and runs the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    // This fails only if a provider is already installed, which is fine.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    submission_manager::cli::run()
}
