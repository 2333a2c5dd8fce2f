//! The command line: what can be asked of the binary, and where it is done.

mod backup;
mod check;
mod client;
mod demo;
mod health;
mod lease;
mod stand_in;
mod token;

use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ContextKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, StoreConfig};
use crate::metrics::Metrics;
use crate::{app, bench, logging};

/// Hands submissions to HTTP gateways: durable, attempted at once, retried as the contract allows.
#[derive(Parser)]
#[command(name = "submission-manager", version, about, args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Config,
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
    let command_line = match parse() {
        Ok(command_line) => command_line,
        Err(code) => return code,
    };
    let result = match command_line.command.unwrap_or(Command::Serve(command_line.serve)) {
        Command::Serve(config) => {
            logging::start();
            block_on(async move { app::serve(&config).await.map_err(|error| error.to_string()) })
        }
        Command::Demo(args) => {
            logging::start_quiet();
            block_on(demo::run(args))
        }
        Command::Check(config) => block_on(check::run(config)),
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

/// Parses the command line; a bad value is answered with both its flag and its variable.
fn parse() -> Result<CommandLine, ExitCode> {
    let fail = |mut error: clap::Error| {
        if let Some(variable) = variable_of(&error) {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            eprintln!("{}", first.replacen("': ", &format!("' or {variable}: "), 1));
            return ExitCode::from(2);
        }
        error = error.format(&mut CommandLine::command());
        let code = error.exit_code();
        let _nowhere_to_print_to = error.print();
        ExitCode::from(u8::try_from(code).unwrap_or(2))
    };
    let matches = CommandLine::command().try_get_matches().map_err(fail)?;
    CommandLine::from_arg_matches(&matches).map_err(fail)
}

/// The environment variable of the argument that an error is about.
fn variable_of(error: &clap::Error) -> Option<String> {
    let argument = error.get(ContextKind::InvalidArg)?.to_string();
    let flag = argument.split_whitespace().next()?.trim_start_matches("--").to_owned();
    let command = CommandLine::command();
    let mut all = command.get_arguments().chain(command.get_subcommands().flat_map(clap::Command::get_arguments));
    let found = all.find(|known| known.get_long() == Some(flag.as_str()))?;
    Some(found.get_env()?.to_string_lossy().into_owned())
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
