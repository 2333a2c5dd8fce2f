//! The command line: what can be asked of the binary, and where it is done.

mod backup;
mod check;
mod client;
mod demo;
mod health;
mod lease;
mod settings;
mod stand_in;
mod token;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};

use self::settings::{Asked, BadSetting};
use crate::config::settings::{Config, StoreConfig};
use crate::devtools::bench;
use crate::service;
use crate::telemetry::logging;
use crate::telemetry::metrics::Metrics;

/// Hands submissions to HTTP gateways: durable, attempted at once, retried as the contract allows.
#[derive(Parser)]
#[command(
    name = "submission-manager",
    version,
    about,
    after_help = "Without a command it is 'serve': its settings are listed by 'submission-manager serve --help'."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service (what is done without a command)
    #[command(
        after_help = "Example:\n  SM_STORE=sqlite:data/submission.db submission-manager serve --listen 127.0.0.1:8082"
    )]
    Serve(Config),
    /// Run the service with stand-in gateways and sample intents, to see everything at once
    #[command(after_help = "Example:\n  submission-manager demo --listen 127.0.0.1:8082")]
    Demo(demo::DemoArgs),
    /// Validate settings, registry and store without starting; exit code 0 or 1
    #[command(after_help = "Example:\n  submission-manager check --registry registry/submission_targets.json")]
    Check(Config),
    /// Bring the schema of the store up to date; safe to repeat
    #[command(after_help = "Example:\n  submission-manager migrate --store sqlite:data/submission.db")]
    Migrate(StoreConfig),
    /// Copy an embedded store to a file while it is in use; the copy is consistent and verified
    #[command(after_help = "Example:\n  submission-manager backup copy.db --store sqlite:data/submission.db")]
    Backup(backup::BackupArgs),
    /// The lease that decides who executes
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// Submit an intent to a running service and print the answer
    #[command(after_help = "Example:\n  submission-manager submit --id order-1001 --target sms.realtime \\\n    \
        --payload '{\"to\":\"+46700000001\",\"message\":\"Hello\"}' --wait 10")]
    Submit(client::SubmitArgs),
    /// Drive a deployment, or one started for it, and report what it held
    #[command(
        after_help = "Examples:\n  submission-manager bench\n  submission-manager bench --suite --json bench.json\n  \
        submission-manager bench --rate 4000 --gateway-millis 50"
    )]
    Bench(bench::BenchArgs),
    /// Show what happened to an intent
    #[command(after_help = "Example:\n  submission-manager history order-1001")]
    History(client::HistoryArgs),
    /// Whether the service on this machine is alive; exit code 0 or 1
    Health(health::HealthArgs),
    /// Run the demo's stand-in gateways alone
    StandIn(stand_in::StandInArgs),
    /// Tokens of API clients
    #[command(subcommand)]
    Token(token::TokenCommand),
}

pub fn run() -> ExitCode {
    let (command, bad) = match parse() {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let result = match command {
        Command::Serve(config) => {
            logging::start();
            block_on(async move { service::serve(&config).await.map_err(|error| error.to_string()) })
        }
        Command::Demo(args) => {
            logging::start_quiet();
            block_on(demo::run(args))
        }
        Command::Check(config) => block_on(check::run(config, &bad)),
        Command::Migrate(config) => block_on(migrate(config)),
        Command::Backup(args) => block_on(backup::run(args)),
        Command::Lease(command) => block_on(lease::run(command)),
        Command::Submit(args) => block_on(client::submit(args)),
        Command::Bench(args) => {
            logging::start_quiet();
            block_on(bench::run(args))
        }
        Command::History(args) => block_on(client::history(args)),
        Command::Token(command) => token::run(command),
        Command::Health(args) => block_on(health::run(args)),
        Command::StandIn(args) => {
            logging::start_quiet();
            block_on(stand_in::run(args))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("submission-manager: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The command with its settings. `check` is also run if some are bad, without those, to report all errors at once.
fn parse() -> Result<(Command, Vec<BadSetting>), ExitCode> {
    match settings::read::<CommandLine>(&CommandLine::command(), &arguments(std::env::args_os())) {
        Asked::Command(command_line) => Ok((command_line.command, Vec::new())),
        Asked::Bad(mut bad) => {
            let settings = std::mem::take(&mut bad.settings);
            if bad.subcommand == CHECK {
                return bad.without().map(|config| (Command::Check(config), settings)).map_err(|error| fail(&error));
            }
            settings.iter().for_each(|bad| eprintln!("error: {}", bad.text));
            Err(ExitCode::from(USAGE))
        }
        Asked::Other(error) => Err(fail(&error)),
    }
}

/// The exit code of a command line that cannot be used, as clap has it.
const USAGE: u8 = 2;
const SERVE: &str = "serve";
const CHECK: &str = "check";

/// Adds the command that is run if none is named.
fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = given.collect();
    let of_no_command = ["--help", "-h", "--version", "-V"];
    let names_none = |first: &OsString| {
        first.to_str().is_some_and(|first| first.starts_with('-') && !of_no_command.contains(&first))
    };
    if arguments.get(1).is_none_or(names_none) {
        arguments.insert(arguments.len().min(1), SERVE.into());
    }
    arguments
}

fn fail(error: &clap::Error) -> ExitCode {
    let _nowhere_to_print_to = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE))
}

fn block_on(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    actix::System::new().block_on(work)
}

async fn migrate(config: StoreConfig) -> Result<(), String> {
    let metrics = Arc::new(Metrics::new().map_err(|error| error.to_string())?);
    let choice = config.choice().map_err(|error| error.to_string())?;
    match choice.migrate(metrics).await.map_err(|error| error.to_string())? {
        0 => println!("{}: up to date", choice.name()),
        run => println!("{}: ran {run} migration{}", choice.name(), if run == 1 { "" } else { "s" }),
    }
    Ok(())
}
