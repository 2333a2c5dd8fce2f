//! How log lines look: time, level, then an event and its `key=value` pairs, one line an event.

use std::io::Write;

use crate::platform::clock::WallClock;

/// `RUST_LOG` decides what is shown; `info` by default, without the chatter of libraries. Goes to
/// standard error.
pub fn start() {
    start_with("info,actix_server=warn,tiberius=error");
}

/// Warnings only by default, where something else is to be read on the terminal.
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
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("?");
        log::error!("panic thread={:?} at={place} message={message:?}", thread.name().unwrap_or("?"));
    }));
}
