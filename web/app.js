"use strict";
// The page of one room. It speaks the public WebSocket protocol and uses nothing but the browser.
// What people wrote reaches the page as textContent only.

const WORDS = {
  en: {
    recent: "Recent comments", text: "Say something", send: "Send", name: "Name", mode: "Mode", scroll: "Scroll",
    top: "Top", bottom: "Bottom", color: "Colour", size: "Size", small: "Small", medium: "Medium", large: "Large",
    connecting: "Connecting", live: "Live", lost: n => `Back in ${n} s`, online: n => `${n} online`,
    gap: n => `${n} comments could not be shown`, wait: n => `try again in ${n} s`, unsent: "Not connected; not sent",
    token_expired: "This link has expired", token_required: "Please sign in", wrong_room: "This link is for another room",
    bad_token: "This link is not valid",
  },
  zh: {
    recent: "最近弹幕", text: "发个弹幕吧", send: "发送", name: "昵称", mode: "模式", scroll: "滚动",
    top: "顶部", bottom: "底部", color: "颜色", size: "字号", small: "小", medium: "中", large: "大",
    connecting: "连接中", live: "已连接", lost: n => `${n} 秒后重连`, online: n => `${n} 人在线`,
    gap: n => `有 ${n} 条弹幕未能显示`, wait: n => `请 ${n} 秒后再试`, unsent: "未连接，没有发送",
    // The server's sentences are English; for the usual refusals the code is enough.
    rate_limited: "发送太快了", busy: "服务器繁忙", going_away: "服务器即将重启", text_blank: "内容为空",
    token_expired: "链接已过期", token_required: "请先登录", wrong_room: "链接属于其他房间", bad_token: "链接无效",
    text_too_long: "内容过长", text_too_large: "内容过长", text_invisible: "内容不可见",
  },
};
const LANG = (navigator.language || "en").startsWith("zh") ? "zh" : "en";
const T = WORDS[LANG];
const MAX_FLYING = 150;   // More cannot be read, and each costs the compositor a layer.
const MAX_LISTED = 200;
const UNANSWERED_MS = 10000;
const TOKEN_EXPIRED = 4005;

const $ = id => document.getElementById(id);
const ui = Object.fromEntries(
  ["room", "online", "state", "stage", "list", "send", "text", "count", "button", "name", "mode", "color", "size", "notice"]
    .map(id => [id, $(id)]));
const query = new URLSearchParams(location.search);
const room = decodeURIComponent((location.pathname.match(/^\/rooms\/([^/]+)/) || [])[1] || "") || query.get("room") || "lobby";

// Storage may be forbidden; then the key and the name last as long as the page.
const kept = {
  get(key) { try { return localStorage.getItem(key); } catch { return null; } },
  set(key, value) { try { localStorage.setItem(key, value); } catch { /* as said */ } },
};
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");
}
// Behind the #, so that no server or proxy sees it in the page's address.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const guest = kept.get("danmaku.guest") || randomId();
kept.set("danmaku.guest", guest);

// --- the stage -------------------------------------------------------------------------------------------------

const still = matchMedia("(prefers-reduced-motion: reduce)");
const lanes = { 1: [], 4: [], 5: [] };   // By mode: when each lane is free again.

function laneFor(mode, height, busyMs) {
  const now = performance.now();
  const count = Math.max(1, Math.floor(ui.stage.clientHeight * (mode === 1 ? 0.85 : 0.4) / height));
  const free = lanes[mode];
  let lane = 0;
  for (let i = 0; i < count; i++) {
    if ((free[i] || 0) <= now) { lane = i; break; }
    if ((free[i] || 0) < (free[lane] || 0)) lane = i;   // All taken: overlap where it ends first.
  }
  free[lane] = now + busyMs;
  return lane;
}

function luminance(rgb) {
  return 0.299 * (rgb >> 16) + 0.587 * (rgb >> 8 & 255) + 0.114 * (rgb & 255);
}

function fly(comment) {
  if (document.hidden || ui.stage.childElementCount >= MAX_FLYING) return;
  const mode = still.matches && comment.mode !== 4 ? 5 : comment.mode in lanes ? comment.mode : 1;
  const item = document.createElement("span");
  item.textContent = comment.text;
  item.style.color = "#" + comment.color.toString(16).padStart(6, "0");
  item.style.fontSize = comment.size + "px";
  if (luminance(comment.color) < 60) item.className = "light-edge";
  ui.stage.append(item);
  const lineHeight = 40, width = ui.stage.clientWidth;
  if (mode === 1) {
    const length = item.offsetWidth, duration = 7000 + 1000 * Math.min(3, length / width);
    const speed = (width + length) / duration;
    // The lane is free once the tail has come in, with a little air behind it.
    item.style.top = laneFor(1, lineHeight, (length + 40) / speed) * lineHeight + "px";
    item.animate([{ transform: `translateX(${width}px)` }, { transform: `translateX(${-length}px)` }], duration)
      .onfinish = () => item.remove();
  } else {
    item.classList.add("still");
    item.style[mode === 5 ? "top" : "bottom"] = laneFor(mode, lineHeight, 4000) * lineHeight + "px";
    setTimeout(() => item.remove(), 4000);
  }
}

// --- the list --------------------------------------------------------------------------------------------------

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shown = new Map();   // Id to list entry, for doubles and recalls.

function addEntry(parts, className) {
  const isAtEnd = ui.list.scrollHeight - ui.list.scrollTop - ui.list.clientHeight < 40;
  const entry = document.createElement("p");
  if (className) entry.className = className;
  entry.append(...parts);
  ui.list.append(entry);
  while (ui.list.childElementCount > MAX_LISTED) {
    shown.delete(ui.list.firstElementChild.dataset.id);
    ui.list.firstElementChild.remove();
  }
  if (isAtEnd) ui.list.scrollTop = ui.list.scrollHeight;
  return entry;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function show(comments, areFlying) {
  // A long batch would block the page; the list keeps no more than its last ones anyway.
  for (const comment of comments.slice(-MAX_LISTED)) {
    if (shown.has(comment.id)) continue;
    const entry = addEntry([element("time", clock.format(comment.ts)), element("b", comment.name), comment.text]);
    entry.dataset.id = comment.id;
    shown.set(comment.id, entry);
    if (areFlying) fly(comment);
  }
}

// --- the connection --------------------------------------------------------------------------------------------

let socket = null, cursor = null, attempt = 0, comeBackMs = null, isGreeted = false, limits = { maxChars: 100 };

function setState(state, text) {
  ui.state.dataset.state = state;
  ui.state.textContent = text;
}

function connect() {
  setState("connecting", T.connecting);
  const params = new URLSearchParams({ ...(token ? { token } : { guest }), name: ui.name.value.trim() });
  if (!ui.name.value.trim()) params.delete("name");
  if (cursor) params.set("since", cursor);
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const mine = new WebSocket(`${scheme}://${location.host}/ws/${encodeURIComponent(room)}?${params}`);
  socket = mine;
  comeBackMs = null;
  isGreeted = false;
  mine.onmessage = event => {
    if (socket !== mine) return;
    const frame = JSON.parse(event.data);
    (handlers[frame.type] || (() => {}))(frame);
  };
  mine.onclose = async event => {
    if (socket !== mine) return;
    const code = event.code === TOKEN_EXPIRED ? "token_expired" : isGreeted ? null : await whyNot();
    if (socket !== mine) return;
    if (!code) return reconnect();
    // The same token, or none, would be refused again.
    socket = null;
    setState("lost", T[code] || T.bad_token);
    refresh();
  };
}

/** The code with which the server keeps the page out; null when it does not. A handshake that fails does not tell. */
async function whyNot() {
  try {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch(`/api/rooms/${encodeURIComponent(room)}`, { headers });
    return [401, 403].includes(answer.status) ? (await answer.json()).code : null;
  } catch { return null; }
}

function reconnect() {
  socket = null;
  refresh();
  // The server spreads its clients when it says goodbye; else half to all of 0.5, 1, 2 … 15 s, so that they spread.
  const wait = comeBackMs ?? Math.min(15000, 500 * 2 ** attempt) * (0.5 + Math.random() / 2);
  attempt++;
  const at = Date.now() + wait;
  (function count() {
    const left = at - Date.now();
    if (left <= 0) return connect();
    setState("lost", T.lost(Math.ceil(left / 1000)));
    setTimeout(count, Math.min(left, 250));
  })();
}

const handlers = {
  hello(frame) {
    attempt = 0;
    isGreeted = true;
    cursor = frame.cursor ?? cursor;
    limits = { ...limits, ...frame.limits };
    if (!ui.name.value && frame.self) ui.name.placeholder = frame.self.name;
    setState("live", T.live);
    handlers.room(frame);
    show(frame.recent || [], false);
    refresh();
  },
  comments(frame) { cursor = frame.cursor ?? cursor; show(frame.comments, true); },
  room(frame) { if (frame.online != null) ui.online.textContent = T.online(frame.online); },
  gap(frame) { addEntry([T.gap(frame.missed)], "note"); },
  recall(frame) { for (const id of frame.ids) { shown.get(id)?.remove(); shown.delete(id); } },
  ack(frame) {
    if (frame.nonce !== unanswered?.nonce) return;
    // Only what was sent: the next text may have been begun already.
    if (ui.text.value === unanswered.text) ui.text.value = "";
    unanswered = null;
    settle();
    notify("");
  },
  error(frame) {
    if (frame.nonce && frame.nonce !== unanswered?.nonce) return;
    unanswered = null;
    settle();
    notify(T[frame.code] && LANG !== "en" ? T[frame.code] : frame.message || frame.code, frame.retryAfterMs);
  },
  bye(frame) { comeBackMs = frame.reconnectAfterMs ?? null; },
};

// --- sending ---------------------------------------------------------------------------------------------------

let unanswered = null;   // The last send without an answer, also one that is no longer waited for.
let waiting = 0;         // The timer of a send that is waited for.
let blockedUntil = 0, noticeTimer = 0;
const segmenter = window.Intl?.Segmenter ? new Intl.Segmenter() : null;

function countChars(text) {
  return segmenter ? Array.from(segmenter.segment(text)).length : Array.from(text).length;
}

function refresh() {
  const chars = countChars(ui.text.value.trim());
  const isOver = chars > limits.maxChars;
  ui.count.textContent = `${chars}/${limits.maxChars}`;
  ui.count.classList.toggle("over", isOver);
  ui.button.disabled = !chars || isOver || !!waiting || Date.now() < blockedUntil || socket?.readyState !== WebSocket.OPEN;
}

/** Shows a sentence; with `retryAfterMs` it counts down, holds the button, and goes away at the end. */
function notify(sentence, retryAfterMs) {
  clearTimeout(noticeTimer);
  blockedUntil = Date.now() + (retryAfterMs || 0);
  (function count() {
    const left = Math.ceil((blockedUntil - Date.now()) / 1000);
    const isOver = retryAfterMs && left <= 0;
    ui.notice.textContent = isOver ? "" : left > 0 ? `${sentence} (${T.wait(left)})` : sentence;
    if (left > 0) noticeTimer = setTimeout(count, Math.min(250, Math.max(0, blockedUntil - Date.now())));
    refresh();
  })();
}

function settle() {
  clearTimeout(waiting);
  waiting = 0;
  refresh();
}

ui.send.onsubmit = event => {
  event.preventDefault();
  refresh();
  if (ui.button.disabled) {
    if (socket?.readyState !== WebSocket.OPEN) notify(T.unsent);
    return;
  }
  const text = ui.text.value;
  // The same text after a lost answer keeps its nonce, so that the server knows it for the same comment.
  const nonce = unanswered?.text === text ? unanswered.nonce : randomId();
  unanswered = { text, nonce };
  waiting = setTimeout(settle, UNANSWERED_MS);
  socket.send(JSON.stringify({
    type: "send", nonce, text, mode: +ui.mode.value, size: +ui.size.value,
    color: parseInt(ui.color.value.slice(1), 16), ack: "accepted",
  }));
  refresh();
};

ui.text.oninput = refresh;
ui.name.onchange = () => {
  kept.set("danmaku.name", ui.name.value.trim());
  // The name belongs to the connection: a new one carries it.
  if (!socket) return;
  const old = socket;
  connect();
  old.close();
};

// --- start -----------------------------------------------------------------------------------------------------

document.documentElement.lang = LANG === "zh" ? "zh-CN" : "en";
document.title = `${room} · danmakud`;
ui.room.textContent = room;
ui.name.value = kept.get("danmaku.name") || "";
for (const node of document.querySelectorAll("[data-text]")) node.textContent = T[node.dataset.text];
for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", T[node.dataset.label]);
for (const node of document.querySelectorAll("[data-hint]")) node.placeholder = T[node.dataset.hint];
refresh();
// A link with another token in the same tab changes nothing else.
addEventListener("hashchange", () => location.reload());
connect();
