"""TensorFlow and Keras files. TensorFlow runs in a child process: Paddle's tests share this one."""
