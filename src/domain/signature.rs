//! Standard Webhooks signatures: HMAC-SHA256 over id, timestamp and body, so that off-the-shelf
//! libraries verify them. Pure; a secret never shows itself, not even through `{:?}`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What that standard allows a secret to have.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const SECRET_PREFIX: &str = "whsec_";
const SIGNATURE_PREFIX: &str = "v1,";

/// How far the timestamp of a message may be from the receiver's clock, as that standard has it.
pub const TOLERANCE_SECONDS: i64 = 5 * 60;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// Says what is wrong with a secret and nothing of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFault {
    #[error("holds no secret; write whsec_ and 24 to 64 random bytes as base64")]
    None,
    #[error("holds a secret that is not whsec_ and base64")]
    NotBase64,
    #[error("holds a secret of {0} bytes; it must have 24 to 64")]
    Size(usize),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// `whsec_` and base64; the prefix may be left out, as libraries allow.
    pub fn parse(text: &str) -> Result<Self, SecretFault> {
        let encoded = text.strip_prefix(SECRET_PREFIX).unwrap_or(text);
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretFault::NotBase64)?;
        if SECRET_BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(SecretFault::Size(bytes.len())) }
    }

    /// Secrets that are valid at the same time, separated by blanks: the way to rotate one.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SecretFault> {
        let secrets = text.split_ascii_whitespace().map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        if secrets.is_empty() { Err(SecretFault::None) } else { Ok(secrets) }
    }

    /// One made of these random bytes, as it is written.
    pub fn text_of(random: &[u8; 32]) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(random))
    }

    /// `None` never comes: HMAC takes a key of any length.
    fn mac(&self, id: &str, timestamp: i64, body: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        Some(mac)
    }
}

/// The value of `webhook-signature`: one signature for each secret.
pub fn sign(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let macs = secrets.iter().filter_map(|secret| secret.mac(id, timestamp, body));
    let signed = macs.map(|mac| format!("{SIGNATURE_PREFIX}{}", STANDARD.encode(mac.finalize().into_bytes())));
    signed.collect::<Vec<_>>().join(" ")
}

/// Whether any of the signatures was made with any of the secrets. Whether the timestamp is recent
/// is for the caller to look at.
pub fn verify(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8], signatures: &str) -> bool {
    let offered = signatures.split_ascii_whitespace().filter_map(|part| part.strip_prefix(SIGNATURE_PREFIX));
    offered.filter_map(|encoded| STANDARD.decode(encoded).ok()).any(|signature| {
        secrets
            .iter()
            .filter_map(|secret| secret.mac(id, timestamp, body))
            .any(|mac| mac.verify_slice(&signature).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the standard's own documentation.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn the_known_example_is_signed_and_verified() {
        let secret = [Secret::parse(SECRET).unwrap()];
        assert_eq!(sign(&secret, ID, TIMESTAMP, BODY), SIGNATURE);
        assert!(verify(&secret, ID, TIMESTAMP, BODY, SIGNATURE));
        for (id, timestamp, body, signature) in [
            ("msg", TIMESTAMP, BODY, SIGNATURE),
            (ID, TIMESTAMP + 1, BODY, SIGNATURE),
            (ID, TIMESTAMP, b"{}".as_slice(), SIGNATURE),
            (ID, TIMESTAMP, BODY, "v1,AAAA"),
            (ID, TIMESTAMP, BODY, &SIGNATURE[3..]),
            (ID, TIMESTAMP, BODY, ""),
        ] {
            assert!(!verify(&secret, id, timestamp, body, signature), "{signature}");
        }
    }

    #[test]
    fn every_secret_of_a_list_signs_and_any_one_verifies() {
        let old = Secret::parse(SECRET).unwrap();
        let new = Secret::parse(&Secret::text_of(&[7; 32])).unwrap();
        let both = Secret::parse_list(&format!("{}\n {SECRET} ", Secret::text_of(&[7; 32]))).unwrap();
        assert_eq!(both, [new.clone(), old.clone()]);
        let signed = sign(&both, ID, TIMESTAMP, BODY);
        assert_eq!(signed.split(' ').count(), 2);
        assert!(verify(&[old], ID, TIMESTAMP, BODY, &signed) && verify(&[new], ID, TIMESTAMP, BODY, &signed));
        assert!(!verify(&[Secret::parse(&Secret::text_of(&[8; 32])).unwrap()], ID, TIMESTAMP, BODY, &signed));
    }

    /// An implementation that is not ours.
    #[test]
    fn the_reference_library_verifies_what_is_signed_here() {
        let theirs = standardwebhooks::Webhook::new(SECRET).unwrap();
        for body in ["{}", "", "{\"a\":\"é\u{202e}\"}"] {
            let ours = sign(&[Secret::parse(SECRET).unwrap()], ID, TIMESTAMP, body.as_bytes());
            assert_eq!(ours, theirs.sign(ID, TIMESTAMP, body.as_bytes()).unwrap());
        }
    }

    #[test]
    fn secrets_that_are_none() {
        for (text, fault) in [
            ("", SecretFault::None),
            (" \n", SecretFault::None),
            ("whsec_", SecretFault::Size(0)),
            ("hunter2", SecretFault::NotBase64),
            ("whsec_c2hvcnQ=", SecretFault::Size(5)),
        ] {
            assert_eq!(Secret::parse_list(text), Err(fault), "{text:?}");
        }
        assert!(Secret::parse(&SECRET[6..]).is_ok(), "the prefix may be left out");
        assert_eq!(format!("{:?}", Secret::parse(SECRET).unwrap()), "Secret(..)");
    }
}
