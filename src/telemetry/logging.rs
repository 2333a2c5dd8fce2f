//! Sets up logging. Each event is one line on standard error: time, level, the name of the event and its `key=value` pairs; or
//! a JSON object with the same fields.

use std::io::Write;

use super::json_lines;
use crate::platform::clock::WallClock;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Starts logging for the service. `RUST_LOG` sets the levels; the default is `info`, and less for some libraries.
pub fn start(format: LogFormat) {
    start_with("info,actix_server=warn,tiberius=error", format);
}

/// Starts logging for commands that print results to the terminal. The default level is `warn`.
pub fn start_quiet() {
    start_with("warn,tiberius=error", LogFormat::Text);
}

fn start_with(default: &str, format: LogFormat) {
    let clock = WallClock::system();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(default))
        .format(move |out, record| match format {
            LogFormat::Text => writeln!(out, "{} {} {}", clock.now(), record.level(), record.args()),
            LogFormat::Json => {
                let (time, text) = (clock.now().to_string(), record.args().to_string());
                writeln!(out, "{}", json_lines::object(&time, record.level(), record.target(), &text))
            }
        })
        .init();
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("?");
        log::error!("panic thread={:?} at={location} message={message:?}", thread.name().unwrap_or("?"));
    }));
}
