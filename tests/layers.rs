//! The folders of `src` are layers: each imports only folders below it. The order is that of the map at the top of
//! `src/lib.rs`, so the map cannot become outdated either.

#![expect(clippy::unwrap_used, reason = "a test that cannot read the sources fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn source_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(source_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns the layers from top to bottom, as the map lists them.
fn layers(source: &Path) -> Vec<String> {
    let map = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    let name = |line: &str| {
        Some(line.strip_prefix("//! - ")?.trim_start_matches('[').strip_prefix('`')?.split_once('`')?.0.to_owned())
    };
    map.lines().filter_map(name).collect()
}

/// Returns the folders that a line of code imports, including the inner names of `crate::{a, b}`.
fn imports(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or_default();
    let names = code.split("crate::").skip(1).flat_map(|rest| {
        let group = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        group.map_or_else(|| vec![rest], |group| group.split(',').collect())
    });
    names.filter_map(|name| name.trim().split(|c: char| !(c.is_alphanumeric() || c == '_')).next()).collect()
}

#[test]
fn folders_import_only_folders_below_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let layers = layers(&source);
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    for file in source_files(&source) {
        let inside = file.strip_prefix(&source).unwrap();
        let first = inside.iter().next().unwrap().to_str().unwrap();
        let Some(own) = layers.iter().position(|layer| *layer == first.trim_end_matches(".rs")) else {
            assert!(["lib.rs", "main.rs"].contains(&first), "{first} is not on the map in src/lib.rs");
            continue;
        };
        for (number, line) in std::fs::read_to_string(&file).unwrap().lines().enumerate() {
            for import in imports(line) {
                let above = layers.iter().position(|layer| layer == import).is_some_and(|other| other < own);
                looked_at += 1;
                if above {
                    wrong.push(format!("src/{}:{}: {}", inside.display(), number + 1, line.trim()));
                }
            }
        }
    }
    assert!(looked_at > 500, "only {looked_at} imports were found: the test looks at the wrong files");
    assert!(wrong.is_empty(), "these lines import a folder above their own:\n{}", wrong.join("\n"));
}

#[test]
fn the_map_names_every_folder() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mapped: BTreeSet<_> = layers(&source).into_iter().collect();
    let map = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    let modules = map
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';').map(str::to_owned));
    assert_eq!(mapped, modules.collect());
}
