"use strict";
(() => {
  const form = document.getElementById("controls");
  if (!form) return;
  const at = (id) => document.getElementById(id);
  const method = at("method"), mode = at("mode"), record = at("record"), least = at("least");
  const groups = [...document.querySelectorAll("details.answers")]; // one per method and mode
  const percent = (share) => (100 * share).toFixed(1) + " %";

  function fill(select, options) { // keeps the choice where it still is one
    const before = select.value;
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
    if (options.some(([value]) => value === before)) select.value = before;
  }

  const named = (name) => groups.filter((group) => group.dataset.method === name);
  const chosen = () => named(method.value).find((group) => group.dataset.mode === mode.value);
  const kept = (group) => JSON.parse(group.dataset.kept); // per threshold: share, mean factuality
  const top = (group) => kept(group).length - 1; // the highest score of the scale

  function choose() {
    fill(mode, named(method.value).map((group) => [group.dataset.mode, group.dataset.mode]));
    const group = chosen();
    const articles = [...group.querySelectorAll("article")];
    least.max = top(group);
    const question = (article) => article.querySelector("h4").firstChild.textContent.trim().slice(0, 70);
    fill(record, [["", `all ${articles.length} shown`], ...articles.map((a, n) => [a.dataset.id, `${n + 1}: ${question(a)}`])]);
    for (const other of groups) other.hidden = other !== group;
    group.open = true;
    for (const article of articles) article.hidden = record.value !== "" && article.dataset.id !== record.value;
    filter();
  }

  function filter() {
    const group = chosen(), highest = top(group), score = Number(least.value);
    at("value").textContent = (score / highest).toFixed(2);
    const [share, truth] = kept(group)[score], all = kept(group)[0][1];
    let text = `Of all ${group.dataset.sentences} sentences of ${method.value}, ${mode.value}: ${percent(share)} kept`;
    if (truth !== null) text += `; mean factuality of what is kept ${percent(truth)}`;
    if (truth !== null && all !== null && score > 0) text += ` (of all: ${percent(all)})`;
    at("kept").textContent = text + ".";
    for (const article of group.querySelectorAll("article")) {
      const sentences = [...article.querySelectorAll(".lv-s")];
      const passes = (s) => score === 0 || highest * Number(s.dataset.confidence ?? -1) >= score - 1e-4;
      for (const s of sentences) s.classList.toggle("out", !passes(s));
      const passing = sentences.filter(passes), labelled = passing.filter((s) => s.dataset.factuality !== undefined);
      const mean = labelled.reduce((sum, s) => sum + Number(s.dataset.factuality), 0) / labelled.length;
      const line = article.querySelector(".kept");
      line.hidden = score === 0;
      line.textContent = `${passing.length} of ${sentences.length} sentences kept` +
        (labelled.length ? `, mean factuality ${percent(mean)}` : "");
    }
  }

  for (const group of groups) {
    for (const s of group.querySelectorAll(".lv-s[data-factuality]")) {
      s.nextElementSibling.dataset.truth = Number(s.dataset.factuality).toFixed(2);
    }
  }
  fill(method, [...new Set(groups.map((group) => group.dataset.method))].map((name) => [name, name]));
  for (const select of [method, mode, record]) select.addEventListener("change", choose);
  least.addEventListener("input", filter);
  at("hide").addEventListener("change", () => document.body.classList.toggle("hide-rest", at("hide").checked));
  at("truth").addEventListener("change", () => document.body.classList.toggle("with-truth", at("truth").checked));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  document.body.classList.add("scripted");
  choose();
})();
