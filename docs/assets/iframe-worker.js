// Search of a site that was opened from disk: browsers start no worker for a file: page, so that the
// worker's script runs in a hidden frame, which speaks to the page as a worker does.
(function () {
  "use strict";
  if (location.protocol !== "file:") return;

  function load(place, address) {
    return new Promise((done, failed) => {
      const script = place.createElement("script");
      script.onload = done;
      script.onerror = () => failed(new Error("cannot load " + address));
      script.src = address;
      place.head.append(script);
    });
  }

  // The theme's worker looks for this name to find its own address.
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, next) => before.then(() => load(inside.document, next)), Promise.resolve());
      const ready = load(inside.document, new URL(address, document.baseURI).href);
      this.postMessage = (data) =>
        ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
    }
  };
})();
