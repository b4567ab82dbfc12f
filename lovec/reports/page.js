"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  document.body.classList.add("scripted");

  // Tabs: a set has one list per dimension; what is chosen in all of them is shown. Sets do not know each other.

  function tabs(set) {
    const lists = [...set.querySelectorAll(":scope > .tabs")];
    const panels = [...set.querySelectorAll(":scope > .panel")];
    const keys = new Map(panels.map((panel) => [panel, JSON.parse(panel.dataset.keys)]));
    const wanted = JSON.parse(set.dataset.opened || "[]");
    const agreeing = (panel, choice) => keys.get(panel).filter((key, n) => key === choice[n]).length;
    const nearest = (some, choice) => some.reduce((a, b) => (agreeing(b, choice) > agreeing(a, choice) ? b : a));
    let shown = nearest(panels, wanted);

    const buttons = lists.map((list, n) => [...list.querySelectorAll("button")].map((button, m) => {
      button.id = `${set.id}-tab-${n}-${m}`;
      return button;
    }));
    const with_value = (n, value) => panels.filter((panel) => keys.get(panel)[n] === value);

    function show(panel) {
      shown = panel;
      const choice = keys.get(panel);
      const names = [];
      buttons.forEach((row, n) => row.forEach((button) => {
        const selected = button.dataset.value === choice[n];
        button.setAttribute("aria-selected", String(selected));
        button.tabIndex = selected ? 0 : -1;
        const leads = nearest(with_value(n, button.dataset.value), choice);
        button.setAttribute("aria-controls", leads.id);
        if (selected && row.length > 1) names.push(button.id);
      }));
      for (const other of panels) {
        other.hidden = other !== panel;
        other.setAttribute("role", "tabpanel");
      }
      if (names.length) {
        panel.removeAttribute("aria-label");
        panel.setAttribute("aria-labelledby", names.join(" "));
      }
    }

    buttons.forEach((row, n) => {
      lists[n].hidden = row.length < 2;
      const choose = (button) => show(nearest(with_value(n, button.dataset.value), keys.get(shown)));
      row.forEach((button, m) => {
        button.addEventListener("click", () => choose(button));
        button.addEventListener("keydown", (event) => {
          const steps = { ArrowRight: m + 1, ArrowLeft: m - 1, Home: 0, End: row.length - 1 };
          if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
          event.preventDefault();
          const next = row[(steps[event.key] + row.length) % row.length];
          choose(next);
          next.focus();
        });
      });
    });
    if (panels.length > 1) show(shown);
  }

  // Copying: the text is part of the page; where the browser has no clipboard for pages, it is selected and copied.

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      area.readOnly = true;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  function copies(button) {
    const words = button.textContent;
    let timer = 0;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(at(button.dataset.copies).textContent);
      button.focus();
      button.textContent = done ? "Copied" : "Not copied";
      at("said").textContent = done ? `${button.getAttribute("aria-label")}: done` : "The browser did not allow to copy";
      clearTimeout(timer);
      timer = setTimeout(() => { button.textContent = words; at("said").textContent = ""; }, 2000);
    });
  }

  // Answers: one method and mode at a time, and a threshold on the confidence.

  function answers(form) {
    const method = at("method"), mode = at("mode"), record = at("record"), least = at("least");
    const groups = [...document.querySelectorAll("details.answers")]; // one per method and mode
    let asked; // [id, words] of the answer chosen last; it stays when the method changes
    const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
    const percent = (share) => (100 * share).toFixed(1) + " %";

    function fill(select, options, before = select.value) { // keeps the choice where it still is one
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
      const options = articles.map((a, n) => [a.dataset.id, `${n + 1}: ${question(a)}`]);
      fill(record, [...options, ["", `all ${articles.length} shown`]], asked?.[0]);
      const missing = asked !== undefined && asked[0] !== record.value;
      at("missing").hidden = !missing;
      at("missing").textContent = missing ?
        `Of ${method.selectedOptions[0].text}, ${mode.value}, no answer to \u201c${asked[1]}\u201d is shown; this is another one.` : "";
      for (const other of groups) other.hidden = other !== group;
      group.open = true;
      for (const article of articles) article.hidden = record.value !== "" && article.dataset.id !== record.value;
      filter();
    }

    function ask() {
      const [number, question] = record.selectedOptions[0].text.split(/: (.*)/s);
      asked = [record.value, question ?? number];
      choose();
    }

    function filter() {
      const group = chosen(), highest = top(group), score = Number(least.value);
      at("value").textContent = (score / highest).toFixed(2);
      const [share, truth] = kept(group)[score], all = kept(group)[0][1];
      let text = `Of all ${count(Number(group.dataset.sentences), "sentence")} of ${method.value}, ${mode.value}: ${percent(share)} kept`;
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
        line.textContent = `${passing.length} of ${count(sentences.length, "sentence")} kept` +
          (labelled.length ? `, mean factuality ${percent(mean)}` : "");
      }
    }

    for (const group of groups) {
      for (const s of group.querySelectorAll(".lv-s[data-factuality]")) {
        s.nextElementSibling.dataset.truth = Number(s.dataset.factuality).toFixed(2);
      }
    }
    fill(method, [...new Map(groups.map((group) => [group.dataset.method, group.dataset.name]))]);
    const first = groups.find((group) => "opened" in group.dataset) || groups[0];
    method.value = first.dataset.method;
    choose();
    mode.value = first.dataset.mode;
    choose();
    record.selectedIndex = 0;
    ask();
    for (const select of [method, mode]) select.addEventListener("change", choose);
    record.addEventListener("change", ask);
    least.addEventListener("input", filter);
    at("next").addEventListener("click", () => {
      record.selectedIndex = (record.selectedIndex + 1) % Math.max(1, record.options.length - 1);
      ask();
    });
    at("hide").addEventListener("change", () => document.body.classList.toggle("hide-rest", at("hide").checked));
    at("truth").addEventListener("change", () => document.body.classList.toggle("with-truth", at("truth").checked));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
  }

  document.querySelectorAll(".tabset").forEach(tabs);
  document.querySelectorAll("button[data-copies]").forEach(copies);
  if (at("controls")) answers(at("controls"));
})();
