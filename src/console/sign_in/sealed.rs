//! Encrypts and authenticates the content of cookies, so that browsers can keep it but neither read nor change it.
//!
//! The cipher is AES-256-GCM-SIV with a random nonce. The keys are derived from the secrets of `SM_SESSION_KEY`, so every
//! instance with the same secrets opens the cookies of the others.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::session_key::SessionSecrets;

const KEY_BYTES: usize = 32;
/// Separates the keys of cookies from keys that something else may derive from the same secrets.
const KEY_LABEL: &[u8] = b"submission-manager console cookie 1";

/// What a cookie is for. A cookie of one kind cannot be used as one of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Session,
    Transaction,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Session => b"session",
            Self::Transaction => b"sign-in",
        }
    }
}

/// Seals and opens cookies.
pub(super) struct Sealer {
    /// The newest first. It seals; all of them open.
    keys: Vec<RandomizedNonceKey>,
}

impl Sealer {
    pub(super) fn new(secrets: &SessionSecrets) -> Result<Self, Unspecified> {
        Ok(Self { keys: secrets.iter().map(key).collect::<Result<_, _>>()? })
    }

    /// Encrypts a value. `None` if the system has no random numbers.
    pub(super) fn seal(&self, purpose: Purpose, value: &impl Serialize) -> Option<String> {
        let mut text = serde_json::to_vec(value).ok()?;
        let nonce = self.keys.first()?.seal_in_place_append_tag(Aad::from(purpose.label()), &mut text).ok()?;
        Some(URL_SAFE_NO_PAD.encode([nonce.as_ref().as_slice(), &text].concat()))
    }

    /// Decrypts a value that any of the keys sealed for this purpose.
    pub(super) fn open<T: DeserializeOwned>(&self, purpose: Purpose, sealed: &str) -> Option<T> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, rest) = bytes.split_at_checked(NONCE_LEN)?;
        self.keys.iter().find_map(|key| {
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut rest = rest.to_vec();
            let text = key.open_in_place(nonce, Aad::from(purpose.label()), &mut rest).ok()?;
            serde_json::from_slice(text).ok()
        })
    }
}

fn key(secret: &[u8]) -> Result<RandomizedNonceKey, Unspecified> {
    let mut key = [0; KEY_BYTES];
    // The secret is random, so it needs no salt.
    let derived = Salt::new(HKDF_SHA256, &[]).extract(secret);
    derived.expand(&[KEY_LABEL], &AES_256_GCM_SIV)?.fill(&mut key)?;
    RandomizedNonceKey::new(&AES_256_GCM_SIV, &key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(secrets: &[u8]) -> Sealer {
        let encoded: Vec<_> =
            secrets.iter().map(|byte| base64::engine::general_purpose::STANDARD.encode([*byte; 32])).collect();
        Sealer::new(&SessionSecrets::parse(&encoded.join(",")).unwrap()).unwrap()
    }

    fn opened(sealer: &Sealer, sealed: &str) -> Option<String> {
        sealer.open(Purpose::Session, sealed)
    }

    #[test]
    fn only_an_unchanged_cookie_of_the_same_purpose_opens() {
        let sealer = sealer(&[1]);
        let sealed = sealer.seal(Purpose::Session, &"ada").unwrap();
        assert_eq!(opened(&sealer, &sealed).as_deref(), Some("ada"));
        assert!(!sealed.contains("ada") && sealed != sealer.seal(Purpose::Session, &"ada").unwrap());
        assert_eq!(sealer.open::<String>(Purpose::Transaction, &sealed), None);
        let bytes = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_eq!(opened(&sealer, &URL_SAFE_NO_PAD.encode(changed)), None, "byte {index}");
            assert_eq!(opened(&sealer, &URL_SAFE_NO_PAD.encode(&bytes[..index])), None, "{index} bytes");
        }
        for text in ["", "x", "!", "é", &format!("{sealed}A"), &format!("{sealed}=")] {
            assert_eq!(opened(&sealer, text), None, "{text}");
        }
    }

    #[test]
    fn an_old_key_opens_and_another_key_does_not() {
        let (old, rotated, new) = (sealer(&[1]), sealer(&[2, 1]), sealer(&[2]));
        let before = old.seal(Purpose::Session, &"ada").unwrap();
        assert_eq!(opened(&rotated, &before).as_deref(), Some("ada"));
        assert_eq!(opened(&new, &before), None);
        let after = rotated.seal(Purpose::Session, &"ada").unwrap();
        assert_eq!(opened(&new, &after).as_deref(), Some("ada"), "the newest key seals");
        assert_eq!(opened(&old, &after), None);
    }
}
