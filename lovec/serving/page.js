"use strict";
// Asks this server, and shows the sentences of its answers with their confidences. Everything that comes from the
// server or from the reader is set as text, never as HTML.

const $ = (id) => document.getElementById(id);
const LOW = Number(document.body.dataset.low), MIDDLE = Number(document.body.dataset.middle);
const DISAGREEMENT = Number(document.body.dataset.disagreement);
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;
const NUMBERS = { confidence: "confidence", stated: "stated score" };

let running = null; // controller of the request under way
let served = null; // what /v1/models says of the model
let shown = { mode: "ask", question: "", text: "", evidence: "", sentences: [] }; // the answer on the page

const visible = (text) => text.replace(UNSAFE, "\ufffd");
const choice = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
const top_ = () => (served ? served[shown.mode === "text" ? "text_scale" : "scale"].length - 1 : 10);
const statements = () => shown.sentences.filter(({ entry }) => !entry.kind);
const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

// The same bands as of lovec.display: by the nearest tenth.
function band(value) {
  if (value === null) return "none";
  const tenths = Math.floor(10 * value + 0.5);
  return tenths <= LOW ? "low" : tenths <= MIDDLE ? "middle" : "high";
}

function valueOf(entry) {
  if (choice("readout") === "confidence") return entry.confidence;
  return entry.score === null ? null : entry.score / top_();
}

const isSourced = (entry) => typeof entry.by_source === "number";

// The confidence by source, as the page of lovec tag shows it.
function sourceNumber(entry) {
  const differs = entry.confidence !== null && Math.abs(entry.by_source - entry.confidence) >= DISAGREEMENT - 1e-9;
  const number = element("sup", `lv-n lv-source${differs ? " lv-differs" : ""}`, entry.by_source.toFixed(2));
  number.setAttribute("aria-hidden", "true");
  return number;
}

function describe(entry) {
  const words = [];
  const known = entry.confidence === null ? "-" : entry.confidence.toFixed(2);
  if (isSourced(entry)) words.push(`by source ${entry.by_source.toFixed(2)}, by knowledge ${known}`);
  else if (entry.confidence !== null) words.push(`confidence ${known}`);
  if (entry.score !== null) words.push(`stated score ${entry.score} of ${top_()}`);
  if (entry.problem) words.push(entry.problem);
  return words.join(", ") || "no confidence";
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function addSentence(entry, before) {
  const passage = $("passage");
  const first = shown.sentences.length === 0;
  if (first || /\n\s*\n/.test(before)) passage.append(document.createElement("p"));
  const paragraph = passage.lastElementChild;
  if (paragraph.childNodes.length) paragraph.append(before.includes("\n") ? document.createElement("br") : " ");
  const indentation = first ? "" : before.match(/\n([^\n]+)$/)?.[1];
  if (indentation) paragraph.append(element("span", "lv-indent", indentation));
  if (entry.kind) { // no statement: a heading, code, a question
    const unit = element("span", "lv-markup", visible(entry.text));
    shown.sentences.push({ entry, unit, before: first ? "" : before });
    paragraph.append(unit);
    return;
  }
  const unit = element("span", "lv-u", "");
  unit.tabIndex = 0;
  const number = element("sup", "lv-n", "");
  number.setAttribute("aria-hidden", "true");
  unit.append(element("span", "lv-s", visible(entry.text)), number);
  if (isSourced(entry)) unit.append(sourceNumber(entry));
  unit.append(element("span", "lv-tip", ` ${describe(entry)}`));
  shown.sentences.push({ entry, unit, before: first ? "" : before });
  paragraph.append(unit);
  paint();
}

// Colours, numbers and what is faded, by the readout and the threshold that are chosen.
function paint() {
  const threshold = Number($("threshold").value);
  const values = [];
  let below = 0;
  const stated = statements();
  for (const { entry, unit } of stated) {
    const value = valueOf(entry);
    const faded = threshold > 0 && (value === null || value < threshold);
    below += faded;
    if (value !== null) values.push(value);
    unit.firstChild.className = `lv-s lv-${band(value)}`;
    unit.children[1].textContent = value === null ? "-" : value.toFixed(2);
    unit.classList.toggle("lv-faded", faded);
  }
  $("shown").textContent = threshold.toFixed(2);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const parts = [count(stated.length, "sentence")];
  if (values.length) parts.push(`mean ${NUMBERS[choice("readout")]} ${mean.toFixed(2)}`);
  if (threshold > 0) parts.push(`${below} below ${threshold.toFixed(2)}`);
  const doing = shown.mode === "ask" ? "Writing …" : "Scoring …"; // not the number: it would be read out every time
  $("status").textContent = running ? doing : parts.join(" · ");
}

// A message, which may stand outside the window of a phone.
function say(text) {
  $("message").textContent = text;
  if (text) $("message").scrollIntoView({ block: "nearest" });
}

function begin(mode, question, text, evidence) {
  shown = { mode, question, text, evidence, sentences: [] };
  $("empty").hidden = true;
  $("answer").hidden = false;
  $("asked").textContent = visible(question);
  $("passage").replaceChildren();
  $("passage").setAttribute("aria-live", "polite");
  $("passage").setAttribute("aria-busy", "true");
  $("copied").textContent = "";
  say("");
  $("send").disabled = true;
  $("stop").hidden = false;
  for (const id of ["copytext", "copyjson"]) $(id).disabled = true;
  paint();
  if (matchMedia("(pointer: coarse)").matches) $("question").blur(); // the keyboard would hide the answer
  if ($("asked").getBoundingClientRect().top > innerHeight / 2) $("asked").scrollIntoView();
}

function end() {
  running = null;
  $("passage").setAttribute("aria-busy", "false");
  $("passage").removeAttribute("aria-live"); // a new threshold is not read out sentence by sentence
  $("send").disabled = false;
  $("stop").hidden = true;
  for (const id of ["copytext", "copyjson"]) $(id).disabled = shown.sentences.length === 0;
  paint();
  if (shown.sentences.length === 0) {
    $("answer").hidden = true;
    $("empty").hidden = false;
  }
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

class Refused extends Error {}

// What a reader can do about a response that is an error.
async function refusal(response) {
  let said = `status ${response.status}`;
  try {
    said = visible((await response.json()).error.message);
  } catch {} // not from this server, but from something between
  if (response.status === 401) {
    $("keyfield").hidden = false;
    $("key").focus();
    return new Refused($("key").value ? "The server does not know this API key." : "The server asks for its API key.");
  }
  if (response.status === 429) return new Refused(`The server is busy: ${said}.`);
  if (response.status === 503) return new Refused(`The server cannot answer now: ${said}.`);
  if (response.status === 504) return new Refused(`The server took too long: ${said}.`);
  if (response.status >= 500) return new Refused(`The server failed: ${said}.`);
  return new Refused(`The server refuses this: ${said}.`);
}

// The objects of a stream of server-sent events; it must end with [DONE].
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new TypeError("the stream broke off");
    const parts = (buffer + value).split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      if (part.startsWith(":")) continue; // a comment, which says that the server is alive
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const item = JSON.parse(data);
      if (item.error) throw new Refused(`The server stopped: ${visible(item.error.message)}.`);
      yield item;
    }
  }
}

async function readModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw await refusal(response);
  [served] = (await response.json()).data;
}

async function request(mode, question, text, evidence) {
  if (!served) await readModel();
  const notes = served.confidence; // an answer that is written with a source is a given text by knowledge
  const note = notes[mode === "ask" && !evidence ? "free-form" : "iterative"];
  const sourced = notes[mode === "ask" ? "free-form by source" : "by source"];
  $("note").textContent = evidence ? `${note} ${sourced}` : note;
  const all = { stream: true, ...(evidence && { evidence }) };
  const ask = { ...all, messages: [{ role: "user", content: question }] };
  const [path, body] = mode === "ask" ? ["v1/chat/completions", ask] : ["v1/tag", { ...all, text, ...(question && { question }) }];
  const response = await fetch(path, {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const item of events(response)) {
    const said = mode === "text" ? item : item.choices[0].delta;
    for (const { index, ...entry } of said.confidence || []) addSentence(entry, said.content.match(/^\s*/)[0]);
    if (said.question) $("asked").textContent = visible((shown.question = said.question));
    const problems = (said.problems || []).filter((problem) => !/^sentence \d+:/.test(problem)); // shown with it
    if (problems.length) say(visible(problems.join("; ")));
  }
}

async function submit() {
  const mode = choice("mode");
  const question = $("question").value.trim(), text = mode === "text" ? $("text").value.trim() : "";
  const evidence = $("evidence")?.value.trim() || ""; // only there where the model was trained with sources
  if (running || !(mode === "text" ? text : question)) return;
  running = new AbortController();
  begin(mode, question, text, evidence);
  try {
    await request(mode, question, text, evidence);
  } catch (error) {
    const arrived = count(statements().length, "sentence");
    if (error instanceof Refused) say(error.message);
    else if (error.name === "AbortError") say(`Stopped after ${arrived}.`);
    else if (shown.sentences.length) say(`The connection broke off after ${arrived}. Is the server still running?`);
    else say("The server cannot be reached. Is it still running?");
  }
  end();
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without https, browsers have no clipboard but this one
    const area = element("textarea", "unseen", "");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  $("copied").textContent = `Copied ${what}.`;
}

const keeps = ({ unit }) => !unit.classList.contains("lv-faded");

// The one of two white spaces that has more line breaks, or else more characters, as in texts of the server.
function wider(one, other) {
  const more = other.split("\n").length - one.split("\n").length || other.length - one.length;
  return more > 0 ? other : one;
}

function copyText() {
  let text = "", gap = ""; // the widest since the last sentence that is kept
  for (const sentence of shown.sentences) {
    gap = wider(gap, sentence.before);
    if (!keeps(sentence)) continue;
    text += (/\n/.test(gap) ? gap : " ") + sentence.entry.text;
    gap = "";
  }
  copy(text.trim(), `${statements().filter(keeps).length} of ${count(statements().length, "sentence")}`);
}

function copyJson() {
  const sentences = shown.sentences.map((sentence) => ({ ...sentence.entry, kept: keeps(sentence) }));
  const source = { ...(shown.mode === "text" && { text: shown.text }), ...(shown.evidence && { evidence: shown.evidence }) };
  const readout = choice("readout"), threshold = Number($("threshold").value);
  const note = $("note").textContent;
  const answer = { model: served.id, question: shown.question, ...source, readout, threshold, note, sentences };
  copy(JSON.stringify(answer, null, 2), "JSON");
}

function chooseMode() {
  const text = choice("mode") === "text";
  $("given").hidden = !text;
  $("text").required = text;
  $("question").required = !text; // without one, the title of the text says what it is about
  $("send").textContent = text ? "Score" : "Ask";
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("form").addEventListener("change", chooseMode);
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("key").addEventListener("change", () => (served = null));
$("threshold").addEventListener("input", paint);
for (const input of document.querySelectorAll('input[name="readout"]')) input.addEventListener("change", paint);
$("copytext").addEventListener("click", copyText);
$("copyjson").addEventListener("click", copyJson);
chooseMode(); // browsers restore fields when a page is reloaded
