//! Passes the text of `submission-manager --version` to the compiler: the version, the commit and the date of the build.
//!
//! - `SOURCE_COMMIT` names the commit for builds without a repository, such as those of an image. Without it, a source
//!   archive has the commit in this file, and in a repository git is asked.
//! - `SOURCE_DATE_EPOCH`, in seconds since 1970, is the date of the build if it is set, so that builds can be repeated.
//! - Debug builds have neither commit nor date, so that tests are not compiled again after each commit.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `git archive` writes the commit here, because `.gitattributes` asks for it.
const ARCHIVED_COMMIT: &str = "$Format:%H$";
/// How much of a commit's hash is shown.
const SHOWN: usize = 12;
/// What the binary is built from.
const SOURCES: [&str; 7] = ["build.rs", "Cargo.toml", "Cargo.lock", "src", "schema", "templates", "registry"];

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo:rerun-if-env-changed=SOURCE_COMMIT\ncargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let version = variable("CARGO_PKG_VERSION");
    let text = if variable("PROFILE") == "debug" {
        println!("cargo:rerun-if-changed=build.rs");
        format!("{version} (debug build)")
    } else {
        let folder = variable("CARGO_MANIFEST_DIR");
        let folder = Path::new(&folder);
        SOURCES.iter().for_each(|source| println!("cargo:rerun-if-changed={source}"));
        let records =
            ["HEAD", "logs/HEAD"].into_iter().filter_map(|file| git(folder, &["rev-parse", "--git-path", file]));
        records.filter(|file| folder.join(file).exists()).for_each(|file| println!("cargo:rerun-if-changed={file}"));
        let commit = commit(&variable("SOURCE_COMMIT"), ARCHIVED_COMMIT, folder);
        let commit = commit.map_or_else(|| "unknown commit".to_owned(), |commit| format!("commit {commit}"));
        format!("{version} ({commit}, built {})", date(build_time(&variable("SOURCE_DATE_EPOCH"))))
    };
    println!("cargo:rustc-env=BUILD_VERSION={text}");
}

/// The commit that is built: the one that is given, or the one of a source archive, or the one of the repository. The last
/// ends with `-dirty` if files were changed since.
pub(crate) fn commit(given: &str, archived: &str, folder: &Path) -> Option<String> {
    let named = |name: &str| (!name.is_empty() && !name.starts_with('$')).then(|| name.chars().take(SHOWN).collect());
    let described = || git(folder, &["describe", "--always", "--dirty", "--exclude=*", &format!("--abbrev={SHOWN}")]);
    named(given).or_else(|| named(archived)).or_else(described)
}

/// Runs git if `folder` is the root of a repository. A repository around the folder is about something else.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    if !folder.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[expect(clippy::disallowed_methods, reason = "the date of the build is the host's")]
pub(crate) fn build_time(source_date_epoch: &str) -> SystemTime {
    match source_date_epoch.parse() {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds),
        Err(_) if source_date_epoch.is_empty() => SystemTime::now(),
        Err(_) => panic!("SOURCE_DATE_EPOCH is {source_date_epoch:?}: set it to a number of seconds since 1970"),
    }
}

/// The day in UTC, such as `2026-11-19`.
pub(crate) fn date(time: SystemTime) -> String {
    let mut day = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}
