//! Normalizes email addresses, phone numbers and names, by which contacts are compared.
//!
//! Each function is idempotent: normalizing its result again gives the same result. Otherwise one person could become two
//! contacts.

use std::borrow::Cow;
use std::collections::BTreeSet;

use icu_normalizer::ComposingNormalizerBorrowed;
use percent_encoding::percent_decode_str;
use phonenumber::{Mode, country};

/// The maximum lengths of stored values, in characters.
const MAX_EMAIL_CHARS: usize = 320;
const MAX_PHONE_CHARS: usize = 40;
const MAX_NAME_CHARS: usize = 200;

/// A text in Unicode normalization form C, in which texts that look the same are equal.
pub(super) fn nfc(text: &str) -> Cow<'_, str> {
    const NORMALIZER: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfc();
    NORMALIZER.normalize(text)
}

/// Why a text does not contain exactly one email address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAddress {
    Missing,
    Several,
}

/// The only email address in a text, in lower case. It can stand alone, in angle brackets after a name, or in a `mailto:`
/// link.
pub(super) fn email(text: &str) -> Result<String, NoAddress> {
    // The query of a link contains the subject and copies, which can contain commas.
    let text = trimmed(text);
    let text = if strip_mailto(text).is_some() { text.split('?').next().unwrap_or_default() } else { text };
    let entries: Vec<_> = entries(text).into_iter().filter(|entry| entry.contains('@')).collect();
    let addresses: BTreeSet<_> = entries.iter().map(|entry| address(entry)).collect();
    let mut addresses = addresses.into_iter();
    match (addresses.next().flatten(), addresses.next()) {
        (Some(address), None) => Ok(address),
        (None, None) if text.matches('@').count() < 2 => Err(NoAddress::Missing),
        _ => Err(NoAddress::Several),
    }
}

/// The entries of a list that is separated by commas and semicolons outside of quotes and angle brackets.
fn entries(text: &str) -> Vec<&str> {
    let (mut quoted, mut bracketed) = (false, false);
    let separates = |c: char| {
        match c {
            '"' if !bracketed => quoted = !quoted,
            '<' if !quoted => bracketed = true,
            '>' if !quoted => bracketed = false,
            _ => {}
        }
        matches!(c, ',' | ';') && !quoted && !bracketed
    };
    text.split(separates).collect()
}

/// The address in one entry of a list.
fn address(entry: &str) -> Option<String> {
    let entry = trimmed(entry);
    let written = match entry.rsplit_once('<') {
        // An entry with another opening bracket contains two addresses.
        Some((name, _)) if name.contains('<') => return None,
        Some((_, bracketed)) => trimmed(bracketed.strip_suffix('>')?),
        None => entry,
    };
    let written = match strip_mailto(written).and_then(|link| link.split('?').next()) {
        Some(encoded) => percent_decode_str(encoded).decode_utf8().ok()?,
        None => Cow::Borrowed(written),
    };
    let address = nfc(&nfc(trimmed(&written)).to_lowercase()).into_owned();
    let (local, domain) = address.split_once('@')?;
    // Characters that would need quotes, or that separate the addresses of a list.
    let odd = |c: char| c.is_whitespace() || c.is_control() || "@<>()[],;:\\\"".contains(c);
    let fine = !local.is_empty()
        && !local.contains(odd)
        && !domain.contains(odd)
        && domain.split('.').all(|label| !label.is_empty())
        && address.chars().count() <= MAX_EMAIL_CHARS;
    fine.then_some(address)
}

/// The rest of a text that begins with `mailto:`.
fn strip_mailto(text: &str) -> Option<&str> {
    const SCHEME: &str = "mailto:";
    let (scheme, rest) = text.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(rest)
}

/// The text without surrounding white space and invisible characters, which are often copied along with an address.
fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| {
        c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}' | '\u{feff}')
    })
}

/// A phone number in E.164 if it is valid, else its letters, digits and plus signs; `None` if it has no digit. `country`
/// applies to numbers without a country code.
pub(super) fn phone(text: &str, country: Option<country::Id>) -> Option<String> {
    let text: String = text.chars().map(plain_digit).collect();
    let first = text.chars().find(|c| c.is_numeric() || *c == '+');
    let country = country.filter(|_| first != Some('+'));
    if let Ok(number) = phonenumber::parse(country, text.trim())
        && number.is_valid()
    {
        return Some(number.format().mode(Mode::E164).to_string());
    }
    let kept: String = text.chars().filter(|c| c.is_alphanumeric() || *c == '+').take(MAX_PHONE_CHARS).collect();
    kept.chars().any(|c| c.is_ascii_digit()).then_some(kept)
}

/// Converts digits and the plus sign of other scripts to ASCII.
fn plain_digit(c: char) -> char {
    /// The zero of full-width, Arabic-Indic and Eastern Arabic digits.
    const ZEROES: [char; 3] = ['\u{ff10}', '\u{660}', '\u{6f0}'];
    const FULL_WIDTH_PLUS: char = '\u{ff0b}';
    if c == FULL_WIDTH_PLUS {
        return '+';
    }
    let value = ZEROES.iter().find_map(|zero| u32::from(c).checked_sub(u32::from(*zero)).filter(|value| *value < 10));
    value.and_then(|value| char::from_digit(value, 10)).unwrap_or(c)
}

/// A name on one line, cut to its maximum length; `None` if it is blank.
pub(super) fn name(text: &str) -> Option<String> {
    let text = nfc(text).replace(char::is_control, " ");
    let kept: String = text.trim().chars().take(MAX_NAME_CHARS).collect();
    Some(kept.trim_end().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_as_mail_programs_write_it() {
        for (text, address) in [
            ("a@x.example", "a@x.example"),
            (" A@X.Example\n", "a@x.example"),
            ("Ann <a@x.example>", "a@x.example"),
            ("<a@x.example>", "a@x.example"),
            ("\"Lee, Ann\" <a@x.example>", "a@x.example"),
            ("Lee, Ann <a@x.example>", "a@x.example"),
            ("\"ann@home\" < a@x.example >", "a@x.example"),
            ("mailto:a@x.example", "a@x.example"),
            ("MailTo:a%2Bb@x.example?subject=Hi,%20Ann&cc=b@x.example", "a+b@x.example"),
            ("<mailto:a@x.example>", "a@x.example"),
            ("a@x.example;", "a@x.example"),
            ("a@x.example, A@X.EXAMPLE", "a@x.example"),
            ("\u{feff}a@x.example\u{200b}", "a@x.example"),
            ("o'hara+tag?!@x", "o'hara+tag?!@x"),
            ("Zoe\u{308}@x.example", "zo\u{eb}@x.example"),
            ("a@bu\u{308}cher.example", "a@b\u{fc}cher.example"),
        ] {
            assert_eq!(email(text).as_deref(), Ok(address), "{text}");
        }
    }

    #[test]
    fn a_text_without_exactly_one_address_is_rejected() {
        for text in
            ["", "n/a", "ann", "@", "@x", "a@", "a b@x", "<a@x", "a@x>", "a@.x", "a@x..y", "a@x.", "a:b@x", "mailto:"]
        {
            assert_eq!(email(text), Err(NoAddress::Missing), "{text}");
        }
        for text in [
            "a@x.example, b@x.example",
            "a@x.example; b@x.example",
            "a@x.example b@x.example",
            "Ann <a@x.example>, Bob <b@x.example>",
            "<a@x.example><b@x.example>",
            "Ann <a@x.example> Bob <b@x.example>",
            "mailto:a@x.example,b@x.example",
            "a@b@x.example",
            "a@x.example, b@",
        ] {
            assert_eq!(email(text), Err(NoAddress::Several), "{text}");
        }
        assert!(email(&format!("{}@x", "a".repeat(MAX_EMAIL_CHARS))).is_err());
    }

    #[test]
    fn digits_of_other_scripts_are_read_as_digits() {
        for text in [
            "070-174 06 05",
            "\u{ff10}\u{ff17}\u{ff10}\u{ff0d}\u{ff11}\u{ff17}\u{ff14}\u{ff10}\u{ff16}\u{ff10}\u{ff15}",
            "\u{ff0b}\u{ff14}\u{ff16} \u{ff17}\u{ff10}\u{ff11}\u{ff17}\u{ff14}\u{ff10}\u{ff16}\u{ff10}\u{ff15}",
            "\u{660}\u{667}\u{660}\u{661}\u{667}\u{664}\u{660}\u{666}\u{660}\u{665}",
            "\u{6f0}\u{6f7}\u{6f0}\u{6f1}\u{6f7}\u{6f4}\u{6f0}\u{6f6}\u{6f0}\u{6f5}",
        ] {
            assert_eq!(phone(text, Some(country::SE)).as_deref(), Some("+46701740605"), "{text}");
        }
        assert_eq!(phone("\u{ff11}\u{ff12}", None).as_deref(), Some("12"), "also if the number is not valid");
    }

    #[test]
    fn names_are_normalized_trimmed_and_cut() {
        assert_eq!(name(" Zoe\u{308}\tLee ").as_deref(), Some("Zo\u{eb} Lee"));
        assert_eq!(name(" \n ").as_deref(), None);
        assert_eq!(name(&"\u{958}".repeat(300)).map(|name| name.chars().count()), Some(MAX_NAME_CHARS));
    }
}
