//! The `init` command: writes a starter configuration into an empty folder, and prints what to do next.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::CommandResult;

#[derive(Args)]
pub(super) struct InitArgs {
    /// The folder to write to: an empty one, or one that does not exist yet
    #[arg(default_value = ".", value_name = "DIR")]
    directory: PathBuf,
}

/// A file that `init` writes.
struct Starter {
    name: &'static str,
    holds: &'static str,
    text: &'static str,
}

const STARTERS: [Starter; 2] = [
    Starter {
        name: "submission_targets.json",
        holds: "the targets and their contracts",
        text: include_str!("submission_targets.json"),
    },
    Starter { name: "submission-manager.env", holds: "the settings", text: include_str!("submission-manager.env") },
];

/// Why the starter configuration was not written.
#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("cannot {what} {}: {source}; name another folder", directory.display())]
    Failed { what: String, directory: PathBuf, source: std::io::Error },
    #[error(
        "{} is not empty, it has {}; name an empty folder or a new one, because init replaces no files",
        directory.display(), name.display()
    )]
    NotEmpty { directory: PathBuf, name: OsString },
}

pub(super) fn run(args: &InitArgs) -> CommandResult {
    let directory = &args.directory;
    let failed = |what: &str, source| InitError::Failed { what: what.to_owned(), directory: directory.clone(), source };
    DirBuilder::new().recursive(true).create(directory).map_err(|error| failed("create", error))?;
    let mut entries = std::fs::read_dir(directory).map_err(|error| failed("read", error))?;
    if let Some(entry) = entries.next() {
        let name = entry.map_err(|error| failed("read", error))?.file_name();
        return Err(InitError::NotEmpty { directory: directory.clone(), name }.into());
    }
    for starter in STARTERS {
        let file = directory.join(starter.name);
        write_new(&file, starter.text).map_err(|error| failed(&format!("write {} to", starter.name), error))?;
    }
    println!("{}", next_steps(directory));
    Ok(())
}

/// Writes a file that does not exist yet.
fn write_new(path: &Path, text: &str) -> Result<(), std::io::Error> {
    let mut file = File::create_new(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn next_steps(directory: &Path) -> String {
    let files: Vec<_> = STARTERS.iter().map(|starter| format!("  {:<26}{}", starter.name, starter.holds)).collect();
    let change_directory = match directory == Path::new(".") {
        true => String::new(),
        false => format!("\n  cd {}", quoted(&directory.display().to_string())),
    };
    format!(
        r#"Created in {directory}:

{files}

Start a stand-in gateway and the service:
{change_directory}
  set -a; . ./submission-manager.env; set +a
  submission-manager check
  submission-manager stand-in --listen 127.0.0.1:8080 &
  submission-manager serve &

Submit an intent, and see what happened to it:

  submission-manager submit --id hello-1 --target sms.example --payload '{{"to":"+46700000001"}}' --wait 10
  submission-manager history hello-1

The operator console is at http://127.0.0.1:8082/ui. To call a gateway of your own, put its URL into
submission_targets.json, check the file, and let the service read it again:

  submission-manager check
  kill -HUP '%?serve'"#,
        directory = directory.display(),
        files = files.join("\n"),
    )
}

/// Quotes the text, so that a shell reads it as one word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    match !text.starts_with('-') && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("-- '{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::registry::Registry;
    use crate::config::variables::Variables;

    #[test]
    fn the_starter_registry_is_valid() {
        let registry = Registry::parse(STARTERS[0].text, &Variables::from_fn(|_| None)).unwrap();
        assert_eq!(registry.targets().count(), 1);
    }

    #[test]
    fn a_folder_is_one_word_of_a_shell() {
        for (text, word) in [
            ("new/folder", "new/folder"),
            ("my folder", "-- 'my folder'"),
            ("it's", r"-- 'it'\''s'"),
            ("-x", "-- '-x'"),
        ] {
            assert_eq!(quoted(text), word);
        }
    }
}
