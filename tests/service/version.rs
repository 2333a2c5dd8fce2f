//! What `--version` prints, and how `build.rs` finds the commit and the date.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::BINARY;

#[path = "../../build.rs"]
#[allow(dead_code, reason = "main and what only main calls are for Cargo")]
mod build_script;

fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"];
    let output = Command::new("git").arg("-C").arg(folder).args(identity).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = Command::new(BINARY).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rest = text.strip_prefix(concat!("submission-manager ", env!("CARGO_PKG_VERSION"), " (")).expect(&text);
    // The tests may be built with any profile.
    assert!(rest == "debug build)\n" || rest.contains("commit") && rest.contains(", built 20"), "{text}");
}

#[test]
fn the_commit_is_found_in_each_kind_of_source() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path();
    let commit = |given: &str, archived: &str| build_script::commit(given, archived, source);
    assert_eq!(commit("", "$Format:%H$"), None, "neither repository nor archive");
    let hash = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(commit("", hash).as_deref(), Some("0123456789ab"), "a source archive");
    assert_eq!(commit("abc", hash).as_deref(), Some("abc"), "what the caller names wins");

    git(source, &["init", "--quiet"]);
    std::fs::write(source.join("file"), "one").unwrap();
    git(source, &["add", "file"]);
    git(source, &["commit", "--quiet", "--message", "First"]);
    git(source, &["tag", "v1"]);
    let head = git(source, &["rev-parse", "HEAD"])[..12].to_owned();
    assert_eq!(commit("", "$Format:%H$"), Some(head.clone()));
    std::fs::write(source.join("file"), "two").unwrap();
    assert_eq!(commit("", "$Format:%H$"), Some(format!("{head}-dirty")));
    // A folder inside a repository that is about something else.
    let inner = source.join("inner");
    std::fs::create_dir(&inner).unwrap();
    assert_eq!(build_script::commit("", "$Format:%H$", &inner), None);
}

#[test]
fn a_source_archive_names_its_commit() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path();
    for file in ["build.rs", ".gitattributes"] {
        std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), source.join(file)).unwrap();
    }
    git(source, &["init", "--quiet"]);
    git(source, &["add", "."]);
    git(source, &["commit", "--quiet", "--message", "First"]);
    git(source, &["archive", "--format=tar", "--output=archive.tar", "HEAD"]);
    let unpacked = Command::new("tar").args(["-xOf", "archive.tar", "build.rs"]).current_dir(source).output().unwrap();
    let head = git(source, &["rev-parse", "HEAD"]);
    let line = format!("const ARCHIVED_COMMIT: &str = \"{head}\";");
    assert!(String::from_utf8_lossy(&unpacked.stdout).contains(&line), "no line {line}");
}

#[test]
fn the_date_is_the_day_in_utc() {
    // As 'date -u -d @<seconds> +%F' prints them.
    for (seconds, day) in [
        (0, "1970-01-01"),
        (951_782_400, "2000-02-29"),
        (951_868_799, "2000-02-29"),
        (951_868_800, "2000-03-01"),
        (1_735_603_200, "2024-12-31"),
        (1_735_689_600, "2025-01-01"),
        (4_107_542_400, "2100-03-01"),
    ] {
        assert_eq!(build_script::date(UNIX_EPOCH + Duration::from_secs(seconds)), day);
        assert_eq!(build_script::build_time(&seconds.to_string()), UNIX_EPOCH + Duration::from_secs(seconds));
    }
    let refused = std::panic::catch_unwind(|| build_script::build_time("yesterday")).unwrap_err();
    assert!(refused.downcast::<String>().unwrap().contains("SOURCE_DATE_EPOCH"));
}
