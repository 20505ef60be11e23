//! The content of the screen, and what keys do to it.
//!
//! Invariant: the last line lists the keys. Without colors, no meaning depends on a color, and none is sent.
//! Absent: any change to the cluster.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

use super::Refresh;
use super::tables::{self, RUN_ORDERS, Speeds, WORKER_ORDERS};
use crate::output::{Report as _, Table};

const HINT: &str = "q quit   ? help   Tab runs/workers   arrows scroll   s sort   r reverse";
const HELP: [&str; 9] = [
    "q, Esc, Ctrl-C    quit",
    "?                 show or hide this help",
    "Tab               the other table",
    "Up, Down, j, k    a line",
    "PgUp, PgDn        a page",
    "Home, End         the first, the last line",
    "s, Right, Left    sort by another column",
    "r                 the other way round",
    "space             look now",
];
/// Lines of a page.
const PAGE: usize = 10;

/// The program's task after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAction {
    Redraw,
    /// Query the cluster now.
    Refresh,
    Quit,
}

/// A table on the screen.
#[derive(Debug, Clone, Copy, Default)]
struct Pane {
    order: usize,
    reversed: bool,
    /// The selected line.
    line: usize,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(super) struct View {
    colored: bool,
    /// Runs, and workers.
    panes: [Pane; 2],
    /// Which of them has the focus.
    active: usize,
    help: bool,
}

impl View {
    pub(super) fn new(colored: bool) -> Self {
        Self { colored, ..Self::default() }
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> KeyAction {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let orders = [RUN_ORDERS.len(), WORKER_ORDERS.len()][self.active];
        let pane = &mut self.panes[self.active];
        match key.code {
            KeyCode::Char('c') if control => return KeyAction::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('?') | KeyCode::Char('h') => self.help = !self.help,
            KeyCode::Char(' ') => return KeyAction::Refresh,
            KeyCode::Tab | KeyCode::BackTab => self.active = 1 - self.active,
            KeyCode::Up | KeyCode::Char('k') => pane.line = pane.line.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => pane.line = pane.line.saturating_add(1),
            KeyCode::PageUp => pane.line = pane.line.saturating_sub(PAGE),
            KeyCode::PageDown => pane.line = pane.line.saturating_add(PAGE),
            KeyCode::Home => pane.line = 0,
            // Clamped to the last line when it is drawn.
            KeyCode::End => pane.line = usize::MAX,
            KeyCode::Char('s') | KeyCode::Right => pane.order = (pane.order + 1) % orders,
            KeyCode::Left => pane.order = (pane.order + orders - 1) % orders,
            KeyCode::Char('r') => pane.reversed = !pane.reversed,
            _ => {}
        }
        KeyAction::Redraw
    }

    /// Draws the latest data, or that there is none yet.
    pub(super) fn draw(
        &mut self,
        frame: &mut Frame<'_>,
        refresh: Option<&Refresh>,
        speeds: &Speeds,
    ) {
        let area = frame.area();
        let Some(refresh) = refresh else {
            frame.render_widget(Paragraph::new("looking"), area);
            return;
        };
        let survey = refresh.survey.table();
        let lines = u16::try_from(survey.lines().count()).unwrap_or(u16::MAX);
        let survey_height = lines.saturating_add(1).min(area.height / 2);
        let heights = [
            Constraint::Length(survey_height),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ];
        let [above, runs, workers, below] = Layout::vertical(heights).areas(area);
        self.draw_survey(frame, above, refresh.survey.health, &survey);
        let table = refresh.runs.as_ref().map(|all| {
            let Pane { order, reversed, .. } = self.panes[0];
            tables::runs(all, speeds, order, reversed)
        });
        self.draw_pane(frame, runs, 0, table);
        let table = refresh.workers.as_ref().map(|all| {
            let Pane { order, reversed, .. } = self.panes[1];
            tables::workers(all, order, reversed)
        });
        self.draw_pane(frame, workers, 1, table);
        frame.render_widget(Paragraph::new(HINT).style(self.style(Modifier::DIM, None)), below);
        if self.help {
            self.draw_help(frame, area);
        }
    }

    fn draw_survey(&self, frame: &mut Frame<'_>, area: Rect, health: &str, text: &str) {
        let color = match health {
            "healthy" => Color::Green,
            "degraded" => Color::Yellow,
            _ => Color::Red,
        };
        let line = |text: &str| {
            let style = match text.contains(health) {
                true => self.style(Modifier::BOLD, Some(color)),
                false if text.starts_with("alarm") => {
                    self.style(Modifier::empty(), Some(Color::Red))
                }
                false => Style::default(),
            };
            Line::styled(text.to_owned(), style)
        };
        let lines: Vec<Line<'_>> = text.lines().map(line).collect();
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// One of the two tables, scrolled so that the selected line is visible.
    fn draw_pane(
        &mut self,
        frame: &mut Frame<'_>,
        area: Rect,
        number: usize,
        table: Result<Table, &String>,
    ) {
        let (what, orders): (_, &[&str]) = match number {
            0 => ("runs", &RUN_ORDERS),
            _ => ("workers", &WORKER_ORDERS),
        };
        let table = match table {
            Ok(table) => table,
            Err(error) => {
                let text = format!("{what:<8} unknown: {error}");
                frame.render_widget(Paragraph::new(text), area);
                return;
            }
        };
        let active = self.active == number;
        let pane = &mut self.panes[number];
        pane.line = pane.line.min(table.len().saturating_sub(1));
        let (order, reversed, marked) = (orders[pane.order], pane.reversed, pane.line);
        let arrow = if reversed { ", reversed" } else { "" };
        let mark = if active { ">" } else { " " };
        let title = format!("{mark} {} {what}, by {order}{arrow}", table.len());
        let mut lines = vec![Line::styled(title, self.style(Modifier::BOLD, None))];
        let text = table.to_string();
        let mut rows = text.lines();
        let header = rows.next().unwrap_or_default();
        lines.push(Line::styled(format!("  {header}"), self.style(Modifier::DIM, None)));
        let room = usize::from(area.height).saturating_sub(lines.len() + 1).max(1);
        let first = (marked + 1).saturating_sub(room);
        for (at, row) in rows.enumerate().skip(first).take(room) {
            let is_marked = active && at == marked;
            let style = match is_marked {
                true => self.style(Modifier::REVERSED, None),
                false => Style::default(),
            };
            let mark = if is_marked { ">" } else { " " };
            lines.push(Line::styled(format!("{mark} {row}"), style));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn draw_help(&self, frame: &mut Frame<'_>, area: Rect) {
        let (width, height) = (52, HELP.len() as u16 + 2);
        let area = Rect {
            x: area.width.saturating_sub(width) / 2,
            y: area.height.saturating_sub(height) / 2,
            width: width.min(area.width),
            height: height.min(area.height),
        };
        frame.render_widget(Clear, area);
        let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::raw(*line)).collect();
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
    }

    /// A style, if styles are enabled.
    fn style(&self, modifier: Modifier, color: Option<Color>) -> Style {
        if !self.colored {
            return Style::default();
        }
        let style = Style::default().add_modifier(modifier);
        color.map_or(style, |color| style.fg(color))
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use rollout_proto::v1;

    use super::*;
    use crate::rolloutctl::run_summary::{Run, sample};
    use crate::rolloutctl::status::{Alarm, Survey};

    fn refresh() -> Refresh {
        let run = |name: &str, failed| {
            let mut run = Run { name: name.into(), ..sample() };
            run.counts.failed = failed;
            run
        };
        Refresh {
            survey: Survey { health: "healthy", ..Survey::default() },
            runs: Ok((0..40).map(|n| run(&format!("run-{n:02}"), n)).collect()),
            workers: Err("there is no leader".into()),
        }
    }

    fn screen(view: &mut View, refresh: &Refresh) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
        terminal.draw(|frame| view.draw(frame, Some(refresh), &Speeds::new())).unwrap();
        terminal
    }

    fn text(terminal: &Terminal<TestBackend>) -> String {
        let buffer = terminal.backend().buffer();
        let lines = buffer.content().chunks(usize::from(buffer.area.width));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    fn press(view: &mut View, code: KeyCode) -> KeyAction {
        view.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_scroll_sort_help_and_quit() {
        let (mut view, refresh) = (View::new(false), refresh());
        let first = text(&screen(&mut view, &refresh));
        assert!(first.contains("> 40 runs, by going on, newest"), "{first}");
        assert!(first.contains("workers  unknown: there is no leader"), "{first}");
        assert!(first.trim_end().ends_with("r reverse"), "{first}");
        assert!(first.contains("> run-00") && !first.contains("run-39"), "{first}");
        press(&mut view, KeyCode::End);
        let end = text(&screen(&mut view, &refresh));
        assert!(end.contains("> run-39") && !end.contains("run-00"), "{end}");
        press(&mut view, KeyCode::Up);
        assert!(text(&screen(&mut view, &refresh)).contains("> run-38"));
        press(&mut view, KeyCode::Home);
        for _ in 0..4 {
            press(&mut view, KeyCode::Char('s'));
        }
        let sorted = text(&screen(&mut view, &refresh));
        assert!(sorted.contains("by failed") && sorted.contains("> run-39"), "{sorted}");
        press(&mut view, KeyCode::Char('r'));
        assert!(text(&screen(&mut view, &refresh)).contains("> run-00"));
        assert_eq!(press(&mut view, KeyCode::Char('?')), KeyAction::Redraw);
        assert!(text(&screen(&mut view, &refresh)).contains("sort by another column"));
        assert_eq!(press(&mut view, KeyCode::Esc), KeyAction::Redraw, "it closes the help");
        assert_eq!(press(&mut view, KeyCode::Char(' ')), KeyAction::Refresh);
        assert_eq!(press(&mut view, KeyCode::Char('q')), KeyAction::Quit);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(ctrl_c), KeyAction::Quit);
    }

    #[test]
    fn unknown_values_are_marked_in_their_place() {
        let alarm = Alarm {
            kind: "NO_LEADER",
            member: None,
            what: "1 of 3 voters answer".into(),
            fix: "start the others".into(),
        };
        let worker =
            v1::WorkerInfo { name: "w1".into(), state: "ready".into(), ..Default::default() };
        let refresh = Refresh {
            survey: Survey { health: "no leader", alarms: vec![alarm], ..Survey::default() },
            runs: Err("there is no leader".into()),
            workers: Ok(vec![worker]),
        };
        let shown = text(&screen(&mut View::new(true), &refresh));
        assert!(shown.contains("runs     unknown: there is no leader"), "{shown}");
        assert!(shown.contains("alarm    NO_LEADER: 1 of 3 voters answer   fix: start"), "{shown}");
        assert!(shown.contains("w1      ready"), "{shown}");
    }

    #[test]
    fn without_colors_nothing_has_a_style() {
        let styled = |colored| {
            let terminal = screen(&mut View::new(colored), &refresh());
            let buffer = terminal.backend().buffer();
            buffer.content().iter().any(|cell| cell.fg != Color::Reset || !cell.modifier.is_empty())
        };
        assert!(styled(true) && !styled(false));
    }
}
