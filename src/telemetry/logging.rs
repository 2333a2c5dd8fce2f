//! Sets up logging. Each event is one line on standard error: time, level, the name of the event and its `key=value` pairs.

use std::io::Write;

use crate::platform::clock::WallClock;

/// Starts logging for the service. `RUST_LOG` sets the levels; the default is `info`, and less for some libraries.
pub fn start() {
    start_with("info,actix_server=warn,tiberius=error");
}

/// Starts logging for commands that print results to the terminal. The default level is `warn`.
pub fn start_quiet() {
    start_with("warn,tiberius=error");
}

fn start_with(default: &str) {
    let clock = WallClock::system();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(default))
        .format(move |out, record| writeln!(out, "{} {} {}", clock.now(), record.level(), record.args()))
        .init();
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("?");
        log::error!("panic thread={:?} at={location} message={message:?}", thread.name().unwrap_or("?"));
    }));
}
