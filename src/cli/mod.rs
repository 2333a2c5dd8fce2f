//! The commands of the binary: parses the command line and runs the command in its module.

mod audit;
mod backup;
mod check;
mod client;
mod copy;
mod demo;
mod events;
mod health;
mod init;
mod lease;
mod packaging;
mod redrive;
mod settings;
mod stand_in;
mod submit_file;
mod token;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};

use self::settings::{InvalidSetting, Parsed};
use crate::config::settings::{Config, StoreConfig};
use crate::devtools::bench;
use crate::platform::errors::full_text;
use crate::service;
use crate::telemetry::logging::{self, LogFormat};
use crate::telemetry::metrics::Metrics;

#[derive(Parser)]
#[command(
    name = "submission-manager",
    version = env!("BUILD_VERSION"),
    about,
    after_help = "Without a command it runs 'serve'. 'submission-manager serve --help' lists all settings."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service (the default command)
    #[command(
        after_help = "Example:\n  SM_STORE=sqlite:data/submission.db submission-manager serve --listen 127.0.0.1:8082"
    )]
    Serve(Config),
    /// Write a starter configuration into an empty folder, and say what to do next
    #[command(after_help = "Example:\n  submission-manager init submissions")]
    Init(init::InitArgs),
    /// Run the service with stand-in gateways and sample intents, to try it out
    #[command(after_help = "Example:\n  submission-manager demo --listen 127.0.0.1:8082")]
    Demo(demo::DemoArgs),
    /// Check settings, registry files and store without starting the service; exits with 0 or 1
    #[command(after_help = "Example:\n  submission-manager check --registry registry/submission_targets.json")]
    Check(Config),
    /// Migrate the schema of the store to this version; safe to repeat
    #[command(after_help = "Example:\n  submission-manager migrate --store sqlite:data/submission.db")]
    Migrate(StoreConfig),
    /// Copy a SQLite store to a file while it is in use, and verify the copy
    #[command(after_help = "Example:\n  submission-manager backup copy.db --store sqlite:data/submission.db")]
    Backup(backup::BackupArgs),
    /// Copy everything from one store into another one that is empty, such as from SQLite to SQL Server, and verify it
    #[command(after_help = "Example:\n  submission-manager copy --from sqlite:data/submission.db \\\n    \
        --to 'Server=tcp:db.example,1433;Database=submissions;User Id=submission;Encrypt=true'")]
    Copy(copy::CopyArgs),
    /// Manage the lease that decides which instance executes
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// Check the audit log
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Send failed intents again, in bulk
    #[command(subcommand)]
    Redrive(redrive::RedriveCommand),
    /// Submit an intent, or all lines of a file, to a running service
    #[command(after_help = "Examples:\n  submission-manager submit --id order-1001 --target sms.realtime \\\n    \
        --payload '{\"to\":\"+46700000001\",\"message\":\"Hello\"}' --wait 10\n  \
        submission-manager submit --file intents.ndjson")]
    Submit(client::SubmitArgs),
    /// Measure the throughput and latency of a running service, or of an instance that this command starts
    #[command(
        after_help = "Examples:\n  submission-manager bench\n  submission-manager bench --suite --json bench.json\n  \
        submission-manager bench --rate 4000 --gateway-millis 50\n  \
        submission-manager bench --store 'Server=tcp:db.example,1433;User Id=bench;Encrypt=true'"
    )]
    Bench(bench::BenchArgs),
    /// Show an intent with all its attempts
    #[command(after_help = "Example:\n  submission-manager history order-1001")]
    History(client::HistoryArgs),
    /// Print how intents ended, in order; with --follow, print new events as intents end
    #[command(
        after_help = "Examples:\n  submission-manager events\n  submission-manager events --follow --target sms.realtime"
    )]
    Events(events::EventsArgs),
    /// Cancel an intent that waits for an attempt
    #[command(after_help = "Example:\n  submission-manager cancel order-1001 --after-attempt")]
    Cancel(client::CancelArgs),
    /// Check that the service on this machine responds; exits with 0 or 1
    Health(health::HealthArgs),
    /// Run only the stand-in gateways of the demo
    StandIn(stand_in::StandInArgs),
    /// Create tokens for API clients
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Print a script that completes commands and flags in a shell
    #[command(
        after_help = "Example:\n  submission-manager completions bash > /etc/bash_completion.d/submission-manager"
    )]
    Completions(packaging::CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = "Examples:\n  submission-manager man | man -l -\n  \
        submission-manager man --directory /usr/local/share/man/man1")]
    Man(packaging::ManArgs),
}

/// The result of a command, or of a step of it. [`run`] prints the error with all its causes, once.
type CommandResult<T = ()> = Result<T, Box<dyn Error>>;

/// Runs the command that the arguments of the process name. Prints an error to standard error if it fails.
pub fn run() -> ExitCode {
    let (command, invalid) = match parse() {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let result = match command {
        Command::Serve(config) => {
            logging::start(config.log_format);
            let format = config.log_format;
            match block_on(async move { Ok(service::serve(&config).await?) }) {
                Err(error) if format == LogFormat::Json => {
                    log::error!("not_started error={:?}", full_text(error.as_ref()));
                    return ExitCode::FAILURE;
                }
                result => result,
            }
        }
        Command::Init(args) => init::run(&args),
        Command::Demo(args) => {
            logging::start_quiet();
            block_on(demo::run(args))
        }
        Command::Check(config) => block_on(check::run(config, &invalid)),
        Command::Migrate(config) => block_on(migrate(config)),
        Command::Backup(args) => block_on(backup::run(args)),
        Command::Copy(args) => block_on(copy::run(args)),
        Command::Lease(command) => block_on(lease::run(command)),
        Command::Audit(command) => block_on(audit::run(command)),
        Command::Redrive(command) => block_on(redrive::run(command)),
        Command::Submit(args) => block_on(client::submit(args)),
        Command::Bench(args) => {
            logging::start_quiet();
            block_on(bench::run(args))
        }
        Command::History(args) => block_on(client::history(args)),
        Command::Events(args) => block_on(events::run(args)),
        Command::Cancel(args) => block_on(client::cancel(args)),
        Command::Token(command) => token::run(command),
        Command::Completions(args) => packaging::completions(&args, &mut CommandLine::command()),
        Command::Man(args) => packaging::man(&args, CommandLine::command()),
        Command::Health(args) => block_on(health::run(args)),
        Command::StandIn(args) => {
            logging::start_quiet();
            block_on(stand_in::run(args))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("submission-manager: {}", full_text(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// The command and its settings. `check` also runs with invalid settings, which it gets as a list, so that it can report
/// all errors at once; every other command fails on them.
fn parse() -> Result<(Command, Vec<InvalidSetting>), ExitCode> {
    match settings::read::<CommandLine>(&CommandLine::command(), &arguments(std::env::args_os())) {
        Parsed::Command(command_line) => Ok((command_line.command, Vec::new())),
        Parsed::Invalid(mut invalid) => {
            let settings = std::mem::take(&mut invalid.settings);
            if invalid.subcommand == CHECK {
                let config = invalid.parse_valid_settings();
                return config.map(|config| (Command::Check(config), settings)).map_err(|error| fail(&error));
            }
            settings.iter().for_each(|setting| eprintln!("error: {}", setting.message));
            Err(ExitCode::from(USAGE_ERROR))
        }
        Parsed::Other(error) => Err(fail(&error)),
    }
}

/// The exit code for an invalid command line; clap uses the same.
const USAGE_ERROR: u8 = 2;
const SERVE: &str = "serve";
const CHECK: &str = "check";

/// Inserts `serve` if the arguments name no command.
fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = given.collect();
    let without_command = ["--help", "-h", "--version", "-V"];
    let is_flag_of_serve = |first: &OsString| {
        first.to_str().is_some_and(|first| first.starts_with('-') && !without_command.contains(&first))
    };
    if arguments.get(1).is_none_or(is_flag_of_serve) {
        arguments.insert(arguments.len().min(1), SERVE.into());
    }
    arguments
}

/// Prints what clap reports (an error, the help or the version) and returns its exit code.
fn fail(error: &clap::Error) -> ExitCode {
    // If the output is closed, there is nowhere to report that to.
    let _ignored = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE_ERROR))
}

fn block_on(work: impl Future<Output = CommandResult>) -> CommandResult {
    actix::System::new().block_on(work)
}

async fn migrate(config: StoreConfig) -> CommandResult {
    let metrics = Arc::new(Metrics::new()?);
    let choice = config.choice()?;
    match choice.migrate(metrics).await? {
        0 => println!("{}: schema is up to date", choice.name()),
        count => println!("{}: ran {count} migration{}", choice.name(), if count == 1 { "" } else { "s" }),
    }
    Ok(())
}
