//! How pages show a moment: how long ago it was, with the exact time as the title. The script of the console adds the time in
//! the viewer's time zone and keeps the text up to date; without scripting the page shows what the server wrote.

use std::fmt;

use askama::filters::HtmlSafe;

use crate::domain::time::Timestamp;

/// A moment, displayed as an HTML element that says how long ago it was.
pub(super) struct When {
    pub at: Timestamp,
    /// The time of the page. Without it, only the exact time is shown.
    pub now: Option<Timestamp>,
}

/// The elements contain nothing but times.
impl HtmlSafe for When {}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, now } = self;
        match now {
            Some(now) => write!(f, "<time datetime=\"{at}\" title=\"{at}\" data-ago>{}</time>", ago(*at, *now)),
            None => write!(f, "<time datetime=\"{at}\" data-exact>{at}</time>"),
        }
    }
}

/// A moment with its date and time, in the viewer's time zone if the browser runs scripts. Displayed as an HTML element.
pub(super) struct Exactly(pub Timestamp);

impl HtmlSafe for Exactly {}

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", When { at: self.0, now: None })
    }
}

/// How long ago a moment was, in one unit. The function `ago` of the script writes the same words.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    let (past, seconds) = if at <= now { (true, now.since(at).as_secs()) } else { (false, at.since(now).as_secs()) };
    let text = match seconds {
        0..10 => return "just now".to_owned(),
        // In steps of ten seconds, so that pages do not change all the time.
        10..60 => format!("{} s", seconds - seconds % 10),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    };
    if past { format!("{text} ago") } else { format!("in {text}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_are_shown_in_one_unit() {
        let now = Timestamp::from_micros(1_000_000_000_000_000);
        for (seconds, text) in [
            (0, "just now"),
            (9, "just now"),
            (59, "50 s ago"),
            (60, "1 min ago"),
            (3599, "59 min ago"),
            (7200, "2 h ago"),
            (200_000, "2 d ago"),
        ] {
            assert_eq!(ago(now - Duration::from_secs(seconds), now), text);
        }
        assert_eq!(ago(now + Duration::from_secs(125), now), "in 2 min");
        let shown = When { at: now - Duration::from_secs(60), now: Some(now) }.to_string();
        assert_eq!(
            shown,
            "<time datetime=\"2001-09-09T01:45:40.000000Z\" title=\"2001-09-09T01:45:40.000000Z\" data-ago>1 min ago</time>"
        );
    }
}
