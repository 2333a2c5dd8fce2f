//! Checks the properties of the fuzz targets with their seeds and with mutations of the seeds, without libFuzzer. So a bug
//! that fuzzing found stays fixed, and `cargo test` shows a change that breaks a property.
//!
//! The inputs are the same in every run. To search for new bugs, run `fuzz/run.sh`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../fuzz/properties.rs"]
mod properties;

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use fastrand::Rng;

/// Mutations for each target. All targets together take a second or two.
const MUTATIONS: usize = 5000;
/// Longer inputs find no further bugs and take longer.
const MAX_BYTES: usize = 4096;

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        const TARGETS: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            hold(stringify!($name), properties::$name);
        })*
    };
}

targets! {
    cursors,
    gateway_answer,
    inbox_payload,
    inbox_submission,
    job_command,
    query,
    registry_api_clients,
    registry_inbox_clients,
    registry_nodes,
    registry_targets,
    retry_after,
    submission,
    traceparent,
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn names_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(fuzz().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_target_is_built_and_has_seeds() {
    let here: BTreeSet<_> = TARGETS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(here, names_in("fuzz_targets"));
    assert_eq!(here, names_in("seeds"));
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for name in TARGETS {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is not in fuzz/Cargo.toml");
        let target = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(target.contains(&format!("properties::{name}(data)")), "{name} fuzzes something else");
    }
}

fn hold(target: &str, property: fn(&[u8])) {
    let mut files: Vec<_> =
        fs::read_dir(fuzz().join("seeds").join(target)).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    for (file, seed) in files.iter().zip(&seeds) {
        check(property, seed, &format!("the seed {}", file.display()));
    }
    let words = words();
    let mut random = Rng::with_seed(4711);
    for number in 0..MUTATIONS {
        let mutation = mutated(&seeds, &words, &mut random);
        check(property, &mutation, &format!("mutation {number}"));
    }
}

fn check(property: fn(&[u8]), input: &[u8], what: &str) {
    if catch_unwind(|| property(input)).is_err() {
        panic!("the property does not hold for {what}: b\"{}\"", input.escape_ascii());
    }
}

/// Returns the words of `words.dict`.
fn words() -> Vec<Vec<u8>> {
    let text = fs::read_to_string(fuzz().join("words.dict")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| unescaped(line.strip_prefix('"').unwrap().strip_suffix('"').unwrap())).collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match (byte == b'\\').then(|| rest.next().unwrap()) {
            Some(b'x') => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            Some(escaped) => escaped,
            None => byte,
        });
    }
    bytes
}

/// Returns a seed with one to four random changes.
fn mutated(seeds: &[Vec<u8>], words: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut input = random.choice(seeds).unwrap().clone();
    for _ in 0..random.usize(1..=4) {
        let from = random.usize(0..=input.len());
        let to = random.usize(from..=input.len().min(from + 16));
        match random.u8(0..6) {
            0 if from < input.len() => input[from] = random.u8(..),
            1 if from < input.len() => input[from] ^= 1 << random.u8(0..8),
            2 => drop(input.drain(from..to)),
            3 => {
                let repeated = input[from..to].to_vec();
                drop(input.splice(from..from, repeated));
            }
            4 => {
                // The end of another seed.
                let other = random.choice(seeds).unwrap();
                input.truncate(from);
                input.extend_from_slice(&other[random.usize(0..=other.len())..]);
            }
            _ => drop(input.splice(from..to, random.choice(words).unwrap().iter().copied())),
        }
    }
    input.truncate(MAX_BYTES);
    input
}
