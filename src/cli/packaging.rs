//! The `completions` and `man` commands: print what a package installs besides the binary. Both are made from the
//! definition of the command line, so they cannot become outdated.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};
use clap_complete::shells;
use clap_mangen::Man;

use super::CommandResult;
use crate::platform::errors::Context;

#[derive(Args)]
pub(super) struct CompletionsArgs {
    /// The shell that completes the commands and flags
    shell: Shell,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Args)]
pub(super) struct ManArgs {
    /// Write the pages of all commands to this folder, instead of printing the first page
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// The manual pages were not written to the folder that the arguments name.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to {}: {source}; name a folder that exists", directory.display())]
struct NotWritten {
    directory: PathBuf,
    source: std::io::Error,
}

pub(super) fn completions(args: &CompletionsArgs, command: &mut Command) -> CommandResult {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    match args.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, command, name, &mut script),
    }
    print(&with_one_label(script))
}

/// The script with one label for each command. For bash, clap_complete 4.6 writes two forms of a program's name that has a
/// hyphen, and without this no flag is completed.
fn with_one_label(script: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8_lossy(&script);
    text.replace("submission__subcmd__manager", "submission__manager").into_bytes()
}

pub(super) fn man(args: &ManArgs, command: Command) -> CommandResult {
    if let Some(directory) = &args.directory {
        let failed = |source| NotWritten { directory: directory.clone(), source };
        return Ok(clap_mangen::generate_to(command, directory).map_err(failed)?);
    }
    let mut page = Vec::new();
    // The first of the pages above. There is no page for the command `help`.
    Man::new(command.disable_help_subcommand(true)).render(&mut page)?;
    print(&page)
}

fn print(text: &[u8]) -> CommandResult {
    Ok(std::io::stdout().write_all(text).context(|| "cannot write to standard output")?)
}
