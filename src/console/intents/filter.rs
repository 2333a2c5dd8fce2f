//! The filter of the list of intents: parses it from the address of the page, collects its errors, and builds the links
//! that change it.

use std::collections::BTreeMap;

use url::form_urlencoded;

use crate::api::intents::{cursor_text, parse_cursor};
use crate::console::time_input::{self, Zone};
use crate::console::wording::cause_words;
use crate::domain::intent::{Status, TargetName};
use crate::domain::redrive::RedriveId;
use crate::domain::time::Timestamp;
use crate::store::{Examined, ListOrder, ListQuery, PageCursor};

/// The parameters of the filter, with their labels.
const FIELDS: [(&str, &str); 10] = [
    ("q", "id"),
    ("status", "status"),
    ("submissionTarget", "target"),
    ("cause", "cause"),
    ("minAttempts", "attempts, at least"),
    ("createdAfter", "created after"),
    ("createdBefore", "created before"),
    ("endedSince", "ended since"),
    ("endedBefore", "ended before"),
    ("redriveId", "redrive"),
];
/// The fields that are times.
const TIMES: [&str; 4] = ["createdAfter", "createdBefore", "endedSince", "endedBefore"];
/// The parameter for the order of the list, and its value; without it the newest intents come first.
const ORDER: &str = "order";
const OLDEST: &str = "oldest";
/// How many earlier pages the address of a page remembers, for the links to previous pages.
const MAX_TRAIL: usize = 30;
/// How many intents a page has.
pub(super) const PAGE: usize = 50;

/// The filter as the operator typed it.
pub(super) struct Filter {
    /// Only values that are not empty.
    values: BTreeMap<&'static str, String>,
    /// The error of each invalid field.
    errors: BTreeMap<&'static str, String>,
    /// An error that does not belong to a single field.
    pub problem: Option<String>,
    /// The times that operators typed, as moments.
    moments: BTreeMap<&'static str, Timestamp>,
    zone: String,
    pub order: ListOrder,
    cursor: Option<String>,
    /// The cursors of the pages before this one, without the first page, which has none.
    trail: Vec<String>,
}

/// A part of the filter, with the address of the list without it.
pub(super) struct Chip {
    pub label: &'static str,
    pub value: String,
    pub without: String,
}

impl Filter {
    /// Reads the query string of a list at the moment `now`.
    pub(super) fn parse(text: &str, now: Timestamp) -> (Self, ListQuery) {
        let mut filter = Self {
            values: BTreeMap::new(),
            errors: BTreeMap::new(),
            problem: None,
            moments: BTreeMap::new(),
            zone: String::new(),
            order: ListOrder::NewestFirst,
            cursor: None,
            trail: Vec::new(),
        };
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let value = value.trim().to_owned();
            match (&*name, FIELDS.iter().find(|(known, _)| *known == name)) {
                (_, _) if value.is_empty() => {}
                (_, Some((known, _))) => drop(filter.values.insert(known, value)),
                ("tz", _) => filter.zone = value,
                (ORDER, _) if value == OLDEST => filter.order = ListOrder::OldestFirst,
                (ORDER, _) => filter.problem = Some(format!("There is no order {value:?}; it can be {OLDEST}.")),
                ("cursor", _) => filter.cursor = Some(value),
                ("trail", _) => filter.trail = value.split(',').map(str::to_owned).collect(),
                ("limit" | "format", _) => {}
                _ => filter.problem = Some(format!("There is no filter {name:?}.")),
            }
        }
        let query = filter.query(now);
        (filter, query)
    }

    fn query(&mut self, now: Timestamp) -> ListQuery {
        let zone = Zone::of_browser(&self.zone);
        for name in TIMES {
            if let Some(moment) = self.read(name, time_input::EXPECTED, |text| time_input::parse(text, now, zone)) {
                self.moments.insert(name, moment);
            }
        }
        let prefix = self.values.get("q").cloned();
        let after = self.cursor.as_deref().and_then(parse_cursor);
        let of_search = after.as_ref().is_some_and(|after| !matches!(after, PageCursor::Newer { .. }));
        if self.cursor.is_some() && (after.is_none() || of_search != prefix.is_some()) {
            self.problem = Some("This link to a further page belongs to another list. Search again.".to_owned());
        }
        let examined = Examined {
            cause: self.values.get("cause").cloned(),
            min_attempts: self.read("minAttempts", "a whole number", |text| text.parse().ok()),
            ended_since: self.moments.get("endedSince").copied(),
            ended_before: self.moments.get("endedBefore").copied(),
        };
        if prefix.is_some() && !examined.is_empty() {
            let text =
                "A search for an id cannot be combined with cause, attempts or times of the end. Remove one of them.";
            self.problem = Some(text.to_owned());
        }
        ListQuery {
            examined,
            prefix,
            status: self.read("status", "pending, accepted, rejected or exhausted", Status::parse),
            target: self.read("submissionTarget", "the name of a target", |text| TargetName::parse(text).ok()),
            redrive: self.read("redriveId", "the id of a redrive", RedriveId::parse),
            created_after: self.moments.get("createdAfter").copied(),
            created_before: self.moments.get("createdBefore").copied(),
            order: self.order,
            limit: PAGE,
            after,
        }
    }

    /// Reads a field; an invalid value is recorded as its error.
    fn read<T>(&mut self, name: &'static str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.values.get(name)?;
        let parsed = parse(text);
        if parsed.is_none() {
            self.errors.insert(name, format!("Write {expected}."));
        }
        parsed
    }

    /// Whether the list can be read.
    pub(super) fn is_valid(&self) -> bool {
        self.errors.is_empty() && self.problem.is_none()
    }

    /// Whether no filter is set.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.values.get(name).map(String::as_str).unwrap_or_default()
    }

    pub(super) fn error(&self, name: &str) -> Option<&String> {
        self.errors.get(name)
    }

    /// The moment that the value of a field means, if it is a time.
    pub(super) fn moment(&self, name: &str) -> Option<&Timestamp> {
        self.moments.get(name)
    }

    /// The parts of the filter.
    pub(super) fn chips(&self) -> Vec<Chip> {
        let chip = |(name, label): &(&'static str, &'static str)| {
            let value = self.values.get(name)?;
            let value = if *name == "cause" { cause_words(value).to_owned() } else { value.clone() };
            Some(Chip { label, value, without: self.url("/ui/intents", &[(name, "")], &[]) })
        };
        FIELDS.iter().filter_map(chip).collect()
    }

    /// The address of the first page in another order.
    pub(super) fn in_order(&self, order: ListOrder) -> String {
        self.with(&[(ORDER, order_text(order))])
    }

    /// The address of the first page with some fields of the filter changed. An empty value removes a field.
    pub(super) fn with(&self, changes: &[(&str, &str)]) -> String {
        self.url("/ui/intents", changes, &[])
    }

    /// The address of the export in this format.
    pub(super) fn export(&self, format: &str) -> String {
        self.url("/ui/export", &[], &[("format", format)])
    }

    /// The address of this page.
    pub(super) fn here(&self) -> String {
        let cursor = self.cursor.as_deref().unwrap_or_default();
        self.url("/ui/intents", &[], &[("cursor", cursor), ("trail", &self.trail.join(","))])
    }

    /// Whether this is the first page.
    pub(super) fn is_first(&self) -> bool {
        self.cursor.is_none()
    }

    /// The address of the next page.
    pub(super) fn next(&self, cursor: &PageCursor) -> String {
        let mut trail = self.trail.clone();
        trail.extend(self.cursor.clone());
        let trail = trail[trail.len().saturating_sub(MAX_TRAIL)..].join(",");
        self.url("/ui/intents", &[], &[("cursor", &cursor_text(cursor)), ("trail", &trail)])
    }

    /// The address of the previous page.
    pub(super) fn previous(&self) -> Option<String> {
        self.cursor.as_ref()?;
        let (last, trail) = match self.trail.split_last() {
            Some((last, trail)) => (last.as_str(), trail.join(",")),
            None => ("", String::new()),
        };
        Some(self.url("/ui/intents", &[], &[("cursor", last), ("trail", &trail)]))
    }

    /// An address with the filter, some of its fields changed, and with further parameters. Empty values are omitted.
    fn url(&self, path: &str, changes: &[(&str, &str)], further: &[(&str, &str)]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let fields = FIELDS.map(|(name, _)| (name, self.value(name)));
        for (name, value) in fields.into_iter().chain([(ORDER, order_text(self.order))]) {
            let changed = changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| *value);
            let value = changed.unwrap_or(value);
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        let has_times = TIMES.iter().any(|name| !self.value(name).is_empty());
        let zone = [("tz", self.zone.as_str())];
        for (name, value) in zone.iter().filter(|_| has_times).chain(further).filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        let query = query.finish();
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    }
}

/// The value of the parameter for an order; empty for the usual one.
const fn order_text(order: ListOrder) -> &'static str {
    match order {
        ListOrder::NewestFirst => "",
        ListOrder::OldestFirst => OLDEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::intent::IntentId;

    fn parse(text: &str) -> (Filter, ListQuery) {
        Filter::parse(text, Timestamp::parse("2026-11-16T10:00:00Z").unwrap())
    }

    #[test]
    fn a_filter_is_read_and_its_links_change_one_part() {
        let (filter, query) = parse("status=rejected&submissionTarget=a+b&createdAfter=10m&q=&tz=-60");
        assert!(filter.is_valid());
        assert_eq!((query.status, query.prefix, query.limit), (Some(Status::Rejected), None, PAGE));
        assert_eq!(query.created_after, Timestamp::parse("2026-11-16T09:50:00Z"));
        let chips: Vec<_> = filter.chips().into_iter().map(|chip| (chip.label, chip.without)).collect();
        assert_eq!(
            chips,
            [
                ("status", "/ui/intents?submissionTarget=a+b&createdAfter=10m&tz=-60".to_owned()),
                ("target", "/ui/intents?status=rejected&createdAfter=10m&tz=-60".to_owned()),
                ("created after", "/ui/intents?status=rejected&submissionTarget=a+b&tz=-60".to_owned()),
            ]
        );
        assert_eq!(filter.with(&[("status", "")]), "/ui/intents?submissionTarget=a+b&createdAfter=10m&tz=-60");
        assert_eq!(parse("").0.with(&[]), "/ui/intents");
    }

    #[test]
    fn errors_are_at_their_field_and_nothing_is_listed() {
        let (filter, _) = parse("createdAfter=soon&status=done");
        assert!(!filter.is_valid());
        assert!(filter.error("createdAfter").unwrap().contains("10m"));
        assert!(filter.error("status").unwrap().contains("pending"));
        assert_eq!((filter.error("q"), filter.value("createdAfter")), (None, "soon"));
        assert!(parse("stauts=x").0.problem.is_some());
        assert!(parse("cursor=x").0.problem.is_some());
    }

    #[test]
    fn further_conditions_are_read_and_not_combined_with_a_search() {
        let (filter, query) = parse("cause=deadline_exceeded&minAttempts=2&endedSince=10m&status=exhausted");
        assert!(filter.is_valid());
        assert_eq!(
            (query.examined.cause.as_deref(), query.examined.min_attempts),
            (Some("deadline_exceeded"), Some(2))
        );
        assert_eq!(query.examined.ended_since, Timestamp::parse("2026-11-16T09:50:00Z"));
        assert_eq!(filter.chips()[1].value, "the deadline passed");
        assert!(parse("minAttempts=many").0.error("minAttempts").is_some());
        assert!(parse("q=a&cause=x").0.problem.is_some());
    }

    #[test]
    fn the_order_is_kept_by_all_links_and_is_no_part_of_the_filter() {
        let (filter, query) = parse("order=oldest");
        assert_eq!((query.order, filter.is_empty(), filter.chips().len()), (ListOrder::OldestFirst, true, 0));
        assert_eq!(filter.with(&[("status", "pending")]), "/ui/intents?status=pending&order=oldest");
        assert_eq!(filter.in_order(ListOrder::NewestFirst), "/ui/intents");
        assert_eq!(parse("q=a").0.in_order(ListOrder::OldestFirst), "/ui/intents?q=a&order=oldest");
        assert!(parse("order=random").0.problem.is_some());
    }

    #[test]
    fn pages_lead_to_the_next_and_back() {
        let cursor = |number: i64| PageCursor::Newer {
            created_at: Timestamp::from_micros(number),
            id: IntentId::parse("a").unwrap(),
        };
        let (first, _) = parse("status=pending");
        assert!(first.is_first() && first.previous().is_none());
        let second = first.next(&cursor(1));
        let (second, query) = parse(second.split_once('?').unwrap().1);
        assert_eq!(query.after, Some(cursor(1)));
        assert_eq!(second.previous().unwrap(), "/ui/intents?status=pending");
        let third = second.next(&cursor(2));
        let (third, _) = parse(third.split_once('?').unwrap().1);
        assert_eq!(third.previous().unwrap(), second.here());
    }
}
