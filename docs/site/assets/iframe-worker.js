// Browsers start no worker from a file: URL. If the site is opened from the disk, the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise(resolve => {
        const script = scope.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(scope);
        scope.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(scope => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
    }
  };
}
