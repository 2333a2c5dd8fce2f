//! Actions on rows that are selected in a list. The first request shows what would be done, the second one does it and shows
//! the results.

use std::fmt;

use askama::Template;

use super::PageError;
use super::form::Form;
use super::nav::Nav;
use crate::domain::time::Timestamp;

/// How many rows can be selected: the store is called for each of them.
const MAX_SELECTED: usize = 200;

/// An action on selected rows.
pub(super) struct Action {
    pub title: &'static str,
    /// The path that the form is sent to.
    pub path: &'static str,
    /// The field of the form that has the ids.
    pub field: &'static str,
    /// The list that it belongs to.
    pub list: &'static str,
    /// Whether it ends something that cannot be continued.
    pub ends_something: bool,
    pub headings: [&'static str; 4],
}

/// A selected row.
pub(super) struct Selected {
    pub id: String,
    pub href: String,
    /// Its target, or its client.
    pub of: String,
    pub at: Timestamp,
    pub state: String,
}

#[derive(Template)]
#[template(path = "console/bulk.html")]
pub(super) struct BulkPage {
    nav: Nav,
    action: &'static Action,
    /// The list with the filter from which the operator came.
    back: String,
    verdict: String,
    button: String,
    rows: Vec<Selected>,
    /// What is selected but not in `rows`, and why.
    left_out: Vec<String>,
    /// The results; empty in the preview.
    done: Vec<String>,
}

impl BulkPage {
    /// The preview. `verb` and `noun` name what would be done, as in "cancel" and "intent".
    pub(super) fn preview(
        nav: Nav,
        action: &'static Action,
        form: &Form,
        [verb, noun]: [&str; 2],
        rows: Vec<Selected>,
        left_out: Vec<String>,
    ) -> Self {
        let what = counted(rows.len(), noun);
        let (first, others) = verb.split_at_checked(1).unwrap_or_default();
        Self {
            nav,
            action,
            back: back(action, form),
            verdict: format!("This would {verb} {what}."),
            button: format!("{}{others} {what}", first.to_uppercase()),
            rows,
            left_out,
            done: Vec::new(),
        }
    }

    /// The results.
    pub(super) fn results(nav: Nav, action: &'static Action, form: &Form, results: Vec<String>) -> Self {
        let (rows, left_out) = (Vec::new(), Vec::new());
        let (verdict, button) = (String::new(), String::new());
        Self { nav, action, back: back(action, form), verdict, button, rows, left_out, done: results }
    }
}

/// The address of the list in the form, which has its filter. Any other address is replaced.
fn back(action: &Action, form: &Form) -> String {
    let text = form.text("back");
    let filtered = text.strip_prefix(action.list).is_some_and(|rest| rest.starts_with('?'));
    if filtered { text.to_owned() } else { action.list.to_owned() }
}

/// The ids that are selected in a form.
pub(super) fn selected<T>(
    form: &Form,
    action: &Action,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, PageError> {
    let ids: Vec<_> = form.all(action.field).filter_map(parse).collect();
    if ids.is_empty() || ids.len() > MAX_SELECTED {
        let selected = if ids.is_empty() { "none is".to_owned() } else { format!("{} are", ids.len()) };
        return Err(PageError::NotDone(format!("Select 1 to {MAX_SELECTED} rows and try again; {selected} selected.")));
    }
    Ok(ids)
}

/// The counts that are not zero, in words.
pub(super) fn tally<T: fmt::Display>(counts: impl IntoIterator<Item = (usize, T)>) -> Vec<String> {
    counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTION: Action = Action {
        title: "Cancel intents",
        path: "/",
        field: "id",
        list: "/ui/intents",
        ends_something: true,
        headings: [""; 4],
    };

    #[test]
    fn a_preview_says_what_would_be_done() {
        let row = |id: &str| Selected {
            id: id.to_owned(),
            href: String::new(),
            of: String::new(),
            at: Timestamp::from_micros(0),
            state: String::new(),
        };
        let page = |rows| {
            BulkPage::preview(Nav::of_nobody(), &ACTION, &Form::parse(b""), ["cancel", "intent"], rows, Vec::new())
        };
        let one = page(vec![row("a")]);
        assert_eq!((one.verdict.as_str(), one.button.as_str()), ("This would cancel 1 intent.", "Cancel 1 intent"));
        assert_eq!(page(vec![row("a"), row("b")]).button, "Cancel 2 intents");
        assert_eq!(tally([(0, "ended"), (2, "cancelled")]), ["2 cancelled"]);
    }

    #[test]
    fn the_way_back_leads_to_the_list_only() {
        let back = |text: &str| back(&ACTION, &Form::parse(text.as_bytes()));
        assert_eq!(back("back=/ui/intents?status%3Dpending%26q%3Da"), "/ui/intents?status=pending&q=a");
        for elsewhere in
            ["", "back=", "back=https://example.org/", "back=//example.org", "back=/ui/intents/a", "back=/ui/targets?a"]
        {
            assert_eq!(back(elsewhere), "/ui/intents", "{elsewhere}");
        }
    }

    #[test]
    fn nothing_or_too_much_cannot_be_selected() {
        let form = |text: &str| Form::parse(text.as_bytes());
        let ids = |text: &str| selected(&form(text), &ACTION, |id| Some(id.to_owned()));
        assert_eq!(ids("id=a&id=b&other=c").ok().unwrap(), ["a", "b"]);
        assert!(ids("other=c").is_err());
        assert!(ids(&"id=a&".repeat(MAX_SELECTED + 1)).is_err());
    }
}
