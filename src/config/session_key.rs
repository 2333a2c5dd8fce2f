//! Parses `SM_SESSION_KEY`: the secrets that protect the cookies of console sessions.

use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// 32 random bytes cannot be guessed; more than 1024 are a mistake.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=1024;
/// Every cookie is tried with every secret. A rotation needs two.
const MOST_SECRETS: usize = 8;
const FILE_PREFIX: &str = "file:";

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// The secrets of sessions, the newest first. The first one protects new cookies; all of them open old ones.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecrets(Vec<Vec<u8>>);

impl fmt::Debug for SessionSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionSecrets({})", self.0.len())
    }
}

/// Why the value of the setting cannot be used. The text completes a sentence that begins with the setting and repeats
/// nothing of the value.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSessionKey {
    #[error("names a file that cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
    #[error("holds no key; make one with 'openssl rand -base64 32'")]
    None,
    #[error("holds more than {MOST_SECRETS} keys; keep the newest and those that open sessions still need")]
    TooMany,
    #[error("holds a key (number {0}) that is not base64; make one with 'openssl rand -base64 32'")]
    NotBase64(usize),
    #[error("holds a key (number {0}) of {1} bytes; it must have at least 32: 'openssl rand -base64 32'")]
    Size(usize, usize),
}

impl SessionSecrets {
    /// Parses secrets in base64, separated by commas or white space, the newest first; or `file:` and the path of a file
    /// with them.
    pub fn parse(text: &str) -> Result<Self, InvalidSessionKey> {
        match text.trim().strip_prefix(FILE_PREFIX) {
            Some(path) => {
                let content = std::fs::read_to_string(Path::new(path.trim())).map_err(InvalidSessionKey::Unreadable)?;
                Self::parse_list(&content)
            }
            None => Self::parse_list(text),
        }
    }

    fn parse_list(text: &str) -> Result<Self, InvalidSessionKey> {
        let parts = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty());
        let secrets = parts.enumerate().map(|(index, part)| secret(index + 1, part)).collect::<Result<Vec<_>, _>>()?;
        match secrets.len() {
            0 => Err(InvalidSessionKey::None),
            count if count > MOST_SECRETS => Err(InvalidSessionKey::TooMany),
            _ => Ok(Self(secrets)),
        }
    }

    /// A secret that only this process knows.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut secret = vec![0; *SECRET_BYTES.start()];
        getrandom::fill(&mut secret)?;
        Ok(Self(vec![secret]))
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
}

fn secret(number: usize, text: &str) -> Result<Vec<u8>, InvalidSessionKey> {
    let decoders = [&alphabet::STANDARD, &alphabet::URL_SAFE].map(|alphabet| GeneralPurpose::new(alphabet, LENIENT));
    let decoded = decoders.iter().find_map(|decoder| decoder.decode(text).ok());
    let secret = decoded.ok_or(InvalidSessionKey::NotBase64(number))?;
    if SECRET_BYTES.contains(&secret.len()) { Ok(secret) } else { Err(InvalidSessionKey::Size(number, secret.len())) }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    use super::*;

    fn lengths(text: &str) -> Vec<usize> {
        SessionSecrets::parse(text).unwrap().iter().map(<[u8]>::len).collect()
    }

    #[test]
    fn keys_are_base64_the_newest_first() {
        let (new, old) = (STANDARD.encode([0xff; 32]), URL_SAFE_NO_PAD.encode([0xfe; 48]));
        assert_eq!(lengths(&new), [32]);
        assert_eq!(lengths(&format!(" {new} , {old}\n")), [32, 48]);
        let both = SessionSecrets::parse(&format!("{new},{old}")).unwrap();
        assert_eq!(both.iter().next(), Some([0xff; 32].as_slice()));
        assert_eq!(format!("{both:?}"), "SessionSecrets(2)");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{new}\n{old}\n")).unwrap();
        assert_eq!(SessionSecrets::parse(&format!("file:{}", file.path().display())).unwrap(), both);
        assert_ne!(SessionSecrets::random().unwrap(), SessionSecrets::random().unwrap());
    }

    #[test]
    fn errors_say_which_key_is_wrong_and_repeat_nothing_of_it() {
        let fine = STANDARD.encode([1; 32]);
        for (text, expected) in [
            (String::new(), "holds no key; make one with 'openssl rand -base64 32'"),
            (format!("{fine},hunter2!"), "holds a key (number 2) that is not base64"),
            (STANDARD.encode([1; 31]), "holds a key (number 1) of 31 bytes; it must have at least 32"),
            (vec![fine.clone(); 9].join(","), "holds more than 8 keys"),
            ("file:/nowhere/key".to_owned(), "names a file that cannot be read: "),
        ] {
            let error = SessionSecrets::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
